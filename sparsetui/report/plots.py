"""Charts as text. Each returns a line, or a list of lines, that is never wider than ``width`` terminal cells.

Every chart has an ASCII form (``unicode=False``) with the same meaning. State is never carried by colour: a chart is
plain text, and whoever shows it may tint it. Charts of several lines return ``list[str]``.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.cells import cell_len, set_cell_size

from sparsetui.evidence.records import BudgetLine, Finding, Number, RegressionBudget
from sparsetui.evidence.text import clean
from sparsetui.report.numbers import brief, fallback_overhead, figure, metric

_TICKS = "▁▂▃▄▅▆▇█"
_TICKS_ASCII = "_.-=+*#@"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_TO_ASCII = str.maketrans({"×": "x", "–": "-", "—": "-", "−": "-", "±": "~", "·": ".", "µ": "u", "…": "~"})
UNEXPLAINED = "unexplained"  # the last line of every budget
_MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


BarRow = tuple[str, float | None, str]  # label, share, text


class RoofPoint(msgspec.Struct, frozen=True):
    """A kernel on the roofline: arithmetic intensity in FLOP/byte, speed in GFLOP/s."""

    label: str
    intensity: float
    gflops: float


class Roofs(msgspec.Struct, frozen=True):
    """The measured ceilings of a host: streaming bandwidth in GB/s and dense GEMM peak in GFLOP/s."""

    gb_s: float
    gflops: float


class LensPoint(msgspec.Struct, frozen=True):
    """One optimisation iteration: working-set pressure (1.0 = at the measured roof) and tail ratio p99/p50."""

    label: str
    pressure: float
    tail: float | None = None


class Zone(msgspec.Struct, frozen=True):
    """A band of the bandwidth lens, from ``low`` up to the next zone's ``low``."""

    name: str
    low: float


def fit(text: str, width: int) -> str:
    """``text`` cut or padded to exactly ``width`` cells."""
    return set_cell_size(text, width) if width > 0 else ""


def spark(
    values: Sequence[float | None],
    width: int,
    unicode: bool = True,
    *,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """A strip of exactly ``width`` cells, newest value rightmost.

    More values than cells are pooled by their maximum, so that a spike is never lost. ``low`` and ``high`` fix the
    scale, which two strips need to be compared. A missing or non-finite value leaves a gap.
    """
    if width <= 0:
        return ""
    clean = [v if v is not None and math.isfinite(v) else None for v in values]
    cells = _pool(clean, width)
    known = [v for v in cells if v is not None]
    if not known:
        return " " * width
    lo = min(known) if low is None else low
    hi = max(known) if high is None else high
    ticks = _TICKS if unicode else _TICKS_ASCII
    line = "".join(" " if v is None else ticks[_level(v, lo, hi, len(ticks))] for v in cells)
    return line.rjust(width)


def bar(share: float | None, width: int, unicode: bool = True) -> str:
    """``share`` of ``width`` cells, padded. Above 1 it ends in ``▶``, below 0 it starts with ``◀``; unknown is blank.

    Anything above 0 leaves at least the thinnest mark: a small share must not look like none.
    """
    if width <= 0:
        return ""
    if share is None or not math.isfinite(share):
        return " " * width
    if share < 0:
        return fit("◀" if unicode else "<", width)
    if share > 1:
        return ("█" * (width - 1) + "▶") if unicode else ("#" * (width - 1) + ">")
    if not unicode:
        return ("#" * max(round(share * width), 1 if share > 0 else 0)).ljust(width)
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    full, rest = divmod(eighths, 8)
    return fit("█" * full + (_EIGHTHS[rest] if rest else ""), width)


def distribution(
    failing: Sequence[float],
    comparator: Sequence[float],
    width: int,
    height: int = 8,
    unicode: bool = True,
    *,
    unit: str = "ms",
    names: tuple[str, str] = ("failing", "comparator"),
) -> list[str]:
    """Two histograms over one axis, one above the other; ``height`` counts all lines, names and axis included.

    The axis ends at the larger 99.5th percentile, so that one straggler does not flatten both; what lies beyond is
    counted in the name line. Heights are shares of each variant's own samples, so unequal counts compare fairly.
    """
    if width <= 0:
        return []
    # half of the largest float, so that no difference of two overflows
    samples = [sorted(v for v in side if abs(v) <= sys.float_info.max / 2) for side in (failing, comparator)]
    if not any(samples):
        return [_cut("no samples", width)]
    lo = min(s[0] for s in samples if s)
    hi = max(s[min(len(s) - 1, int(0.995 * len(s)))] for s in samples if s)
    span = (hi - lo) or abs(lo) or 1.0
    rows = max(1, (height - 3) // 2)
    lines: list[str] = []
    shares = [_shares(s, lo, span, width) for s in samples]
    top = max((max(s) for s in shares if s), default=0.0) or 1.0
    for name, side, share in zip(names, samples, shares, strict=True):
        beyond = sum(1 for v in side if v > lo + span)
        count = f"{name}  n={len(side)}" + (f"  {beyond} beyond the axis" if beyond else "")
        lines.append(_cut(count, width))
        lines.extend(_columns([v / top for v in share], rows, unicode) if side else [" " * width] * rows)
    left, right = f"{brief(lo)}", f"{brief(lo + span)} {unit}".rstrip()
    gap = width - len(left) - len(right)
    lines.append(left + " " * gap + right if gap >= 1 else _cut(right, width))
    return plain(lines, unicode)


def budget_bars(
    budget: RegressionBudget, width: int, unicode: bool = True, findings: Sequence[Finding] = ()
) -> list[str]:
    """The gap split by mechanism, one bar a line, the unexplained rest as the ledger has it; one scale for all.

    ``findings`` tell what a mechanism closes alone, where a line can hold only what the stages before it left. What needs
    a sentence has one below the bars.
    """
    if width <= 0:
        return []
    title = "regression" if budget.question == "regression" else "missing speed-up"
    lines = [_cut(f"{title}: gap {figure(budget.gap_ms, unit='ms')}", width)]
    notes = [x for note in budget_notes(budget, findings) for x in textwrap.wrap(clean(note), width)]
    bars = labelled_bars(budget_rows(budget, findings), width, unicode)
    return plain(lines, unicode) + bars + plain([_cut(x, width) for x in notes], unicode)


def budget_rows(budget: RegressionBudget, findings: Sequence[Finding] = ()) -> list[BarRow]:
    """The budget's lines as rows for :func:`labelled_bars`; a share above 1 sets the scale."""
    top = max([1.0, *(b.share.value for b in budget.lines if b.share.value is not None)])
    rows = []
    for b in budget.lines:
        text, alone = _share_text(b.ms, b.share), alone_share(b, findings)
        if alone is not None:
            ms = figure(b.ms, unit="ms", count=False, interval=False, mark=False)
            text = f"adds {_bare(b.share)}, alone {_bare(alone)}  {ms}"
        rows.append((b.mechanism, None if b.share.value is None else b.share.value / top, text))
    return rows


def alone_share(line: BudgetLine, findings: Sequence[Finding]) -> Number | None:
    """What the mechanism of a line closes alone, as its finding says; ``None`` unless the line is less: a remainder."""
    found = next((f.share_of_regression for f in findings if f.mechanism == line.mechanism), None)
    if found is None or found.value is None or line.share.value is None or line.share.reason is None:
        return None
    return found if line.share.value < min(1.0, found.value) else None


def budget_notes(budget: RegressionBudget, findings: Sequence[Finding] = ()) -> list[str]:
    """The sentences that a budget needs: what a remainder is, and how a share can be more than the whole."""
    notes = []
    target = "the comparator pays elsewhere" if budget.question == "regression" else "it beats its ideal elsewhere"
    for b in budget.lines:
        if b.mechanism != UNEXPLAINED and b.share.value is not None and b.share.value > 1:
            within = b.share.ci is not None and b.share.ci[0] <= 1
            said = "within its interval, it closes all of it" if within else target
            notes.append(f"{b.mechanism} gains more than the gap: {said}")
    if any(alone_share(b, findings) is not None for b in budget.lines):
        notes.append("adds: what is left for it after the stages before it; alone: what removing nothing else closes")
    return notes


def _bare(share: Number) -> str:
    return figure(share, percent=True, count=False, interval=False, mark=False)


def reality_check(metrics: Mapping[str, Any], width: int, unicode: bool = True) -> list[str]:
    """Nominal sparsity, real speed-up and fallback overhead on one scale: shares of the work, or time, of a step.

    Nominal sparsity promises that this share of the work is gone; the second bar is the share of the time that really
    went (1 - 1/speed-up); the third is the share that sparse-eligible products spent on a dense path. A slow-down has
    no saved time: its bar is ``◀`` and its factor says how bad.
    """
    return labelled_bars(reality_rows(metrics), width, unicode)


def reality_rows(metrics: Mapping[str, Any]) -> list[BarRow]:
    """The three rows of :func:`reality_check`."""
    nominal, speedup = metric(metrics, "nominal_sparsity"), metric(metrics, "real_speedup")
    fallback = fallback_overhead(metrics)
    saved = None if not speedup.value or speedup.value <= 0 else 1.0 - 1.0 / speedup.value
    return [
        ("nominal sparsity", nominal.value, figure(nominal, percent=True, count=False)),
        ("real speed-up", saved, figure(speedup, unit="×", count=False)),
        ("fallback overhead", fallback.value, figure(fallback, percent=True, count=False)),
    ]


def labelled_bars(rows: Sequence[BarRow], width: int, unicode: bool = True) -> list[str]:
    """Lines of ``label bar text`` in aligned columns; a narrow width gives the text what it needs, the bar the rest."""
    if width <= 0 or not rows:
        return []
    rows = [(clean(a), b, clean(c)) for a, b, c in rows]
    label_w = min(max(cell_len(r[0]) for r in rows), max(6, width * 2 // 5))
    text_w = min(max((cell_len(c) for _, b, c in rows if b is not None), default=0), max(0, width - label_w - 6))
    bar_w = max(0, min(width - label_w - text_w - 2, 48))
    lines = []
    for label, share, text in rows:
        middle = "" if share is None else bar(share, bar_w, unicode) + " "
        lines.append(_cut(f"{fit(label, label_w)} {middle}{text}", width).rstrip())
    return plain(lines, unicode)


def roofline(points: Sequence[RoofPoint], roofs: Roofs, width: int, height: int, unicode: bool = True) -> list[str]:
    """Log-log roofline: intensity in FLOP/byte to the right, GFLOP/s upwards; each point a letter, named underneath.

    ``height`` counts the grid and its axis; the legend follows with one line a point.
    """
    good = [p for p in points if _positive(p.intensity) and _positive(p.gflops)]
    if width < 20 or height < 4 or not (_positive(roofs.gb_s) and _positive(roofs.gflops)):
        why = "too small for a chart" if width < 20 or height < 4 else "no measured roofs"
        return [_cut(why, width)] if width > 0 else []
    ridge = roofs.gflops / roofs.gb_s
    xs = [p.intensity for p in good] + [ridge]
    ys = [p.gflops for p in good] + [roofs.gflops]
    x0, x1 = math.log10(min(xs) / 4), math.log10(max(xs) * 4)
    y0, y1 = math.log10(min(ys) / 3), math.log10(max(ys) * 2)
    rows, cols = height - 1, width
    grid = [[" "] * cols for _ in range(rows)]

    def row(y: float) -> int:
        return round((y1 - math.log10(y)) / (y1 - y0) * (rows - 1))

    flat, slope = ("─", "╱") if unicode else ("-", "/")
    for c in range(cols):
        intensity = 10 ** (x0 + (x1 - x0) * c / (cols - 1))
        roof = min(roofs.gflops, intensity * roofs.gb_s)
        r = row(roof)
        if 0 <= r < rows:
            grid[r][c] = flat if intensity >= ridge else slope
    legend = []
    for mark, p in zip(_MARKS, good, strict=False):
        c = round((math.log10(p.intensity) - x0) / (x1 - x0) * (cols - 1))
        r = row(p.gflops)
        grid[min(max(r, 0), rows - 1)][min(max(c, 0), cols - 1)] = mark
        reach = p.gflops / min(roofs.gflops, p.intensity * roofs.gb_s)
        at = f"{brief(p.intensity)} FLOP/B  {brief(p.gflops)} GFLOP/s  {100 * reach:.0f}% of its roof"
        legend.append(_cut(f"{mark} {clean(p.label)}  {at}", width))
    axis = f"{brief(10**x0)} FLOP/B"
    end = f"{brief(10**x1)}  roofs {brief(roofs.gb_s)} GB/s, {brief(roofs.gflops)} GFLOP/s"
    gap = cols - len(axis) - len(end)
    last = axis + " " * gap + end if gap > 0 else _cut(end, cols)
    return plain([*("".join(r) for r in grid), last, *legend], unicode)


def lens(
    points: Sequence[LensPoint], zones: Sequence[Zone], width: int, height: int, unicode: bool = True
) -> list[str]:
    """Working-set pressure upwards against optimisation iteration to the right; a zone's lower bound is a line.

    Points are ``o``; a known tail ratio stands in the legend below. ``height`` counts the grid and its axis.
    """
    good = [p for p in points if _plausible(p.pressure)]
    if width < 20 or height < 4:
        return [_cut("too small for a chart", width)] if width > 0 else []
    if not good:
        return [_cut("no iteration has been measured", width)]
    ordered = sorted((z for z in zones if _plausible(z.low)), key=lambda z: z.low)
    top = max([p.pressure for p in good] + [z.low for z in ordered]) * 1.1 or 1.0
    rows, cols = height - 1, width - 2
    grid = [[" "] * cols for _ in range(rows)]

    def row(v: float) -> int:
        return min(max(round((1 - v / top) * (rows - 1)), 0), rows - 1)

    for zone in ordered:
        r = row(zone.low)
        if zone.low > 0:
            for c in range(cols):
                grid[r][c] = ("╌" if unicode else "-") if grid[r][c] == " " else grid[r][c]
        _write(grid[r], f" {clean(zone.name)} ")
    step = max(1, (cols * 2 // 3) // max(len(good), 1))
    shown = good[-(cols * 2 // 3) :]
    for i, p in enumerate(shown):
        grid[row(p.pressure)][min(1 + i * step, cols - 1)] = "o"
    side, corner, floor = ("│", "└", "─") if unicode else ("|", "+", "-")
    tails = []
    for p in shown:
        tail = f"  p99/p50 {brief(p.tail)}" if p.tail else ""
        tails.append(_cut(f"{clean(p.label)}  pressure {brief(p.pressure)}{tail}", width))
    axis = _cut(corner + floor * (width - 12) + " iteration", width)
    return plain([*(side + "".join(r).rstrip() for r in grid), axis, *tails], unicode)


def _share_text(ms: Number, share: Number) -> str:
    text = figure(share, percent=True, count=False)
    return text if ms.value is None else f"{text}  {figure(ms, unit='ms', count=False, interval=False, mark=False)}"


def plain(lines: list[str], unicode: bool) -> list[str]:
    """Without unicode, labels and units come out in ASCII too; what has no ASCII form becomes ``?``."""
    if unicode:
        return lines
    return [s.translate(_TO_ASCII).encode("ascii", "replace").decode("ascii") for s in lines]


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(width, 0))


def _write(row: list[str], text: str) -> None:
    """Put ``text`` at the right end of a row of cells; a wide character takes two, one of them empty."""
    text = _cut(text, len(row))
    c = len(row) - cell_len(text)
    for ch in text:
        size = cell_len(ch)
        if size == 0:
            row[c - 1] += ch
        else:
            row[c : c + size] = [ch] + [""] * (size - 1)
            c += size


def _positive(v: float) -> bool:
    """Whether a rate can be drawn on a logarithmic axis; nothing measured lies outside these bounds."""
    return 1e-12 < v < 1e18


def _plausible(v: float) -> bool:
    return 0 <= v < 1e12


def _pool(values: list[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return values
    out: list[float | None] = []
    for i in range(width):
        part = [v for v in values[i * len(values) // width : (i + 1) * len(values) // width] if v is not None]
        out.append(max(part) if part else None)
    return out


def _level(v: float, lo: float, hi: float, levels: int) -> int:
    if not hi > lo:
        return 0
    return min(max(int((v - lo) / (hi - lo) * levels), 0), levels - 1)


def _shares(side: list[float], lo: float, span: float, bins: int) -> list[float]:
    counts = [0.0] * bins
    for v in side:
        if lo <= v <= lo + span:
            counts[min(int((v - lo) / span * bins), bins - 1)] += 1
    return [c / len(side) for c in counts] if side else counts


def _columns(shares: Sequence[float], rows: int, unicode: bool) -> list[str]:
    lines = []
    for r in range(rows - 1, -1, -1):
        line = ""
        for s in shares:
            level = s * rows - r
            if level <= 0:
                line += " "
            elif unicode:
                line += _TICKS[min(max(math.ceil(level * 8) - 1, 0), 7)]
            else:
                line += "#" if level >= 0.5 else "."
        lines.append(line)
    return lines
