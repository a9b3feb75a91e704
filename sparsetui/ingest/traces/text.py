"""The result of an import as plain lines for a terminal. All text from outside passes through ``clean``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparsetui.evidence.records import Number, TimeTable
from sparsetui.evidence.text import clean

WIDTH = 100
_TOP = 12


def lines(result: dict[str, Any]) -> list[str]:
    """The whole result, at most :data:`WIDTH` characters a line."""
    out: list[str] = []
    for payload in result["files"]:
        out += _file(payload)
    if result.get("ranks"):
        out += _ranks(result["ranks"])
        if "rank_verdict" in result:
            out += [*(line.replace("?", ">", 1) for line in _wrapped(result["rank_verdict"].summary, "  ")), ""]
    if "comparison" in result:
        out += _comparison(result["comparison"])
    if result["cannot_answer"]:
        out += ["", "cannot tell"]
        for u in result["cannot_answer"]:
            out += _wrapped(f"{u.question} {u.why}; settles it: {u.settle}", "  ")
    return out


def _file(p: dict[str, Any]) -> list[str]:
    out = [clean(f"{p['kind']}  {p['file']}", WIDTH)]
    if p["kind"] == "trace":
        out += _trace(p)
    elif p["kind"] == "stacks":
        out += _stacks(p)
    else:
        out += _other(p)
    return [*out, ""]


def _trace(p: dict[str, Any]) -> list[str]:
    rank = "" if p["rank"] is None else f", rank {p['rank']}" + (f" of {p['world_size']}" if p["world_size"] else "")
    out = [clean(f"  {p['events']} events over {_ms(p['span_ms'])}{rank}  {', '.join(p['devices'][:1])}", WIDTH)]
    out += _salvage(p["salvage"])
    odd = [f"{n} {k.replace('_', ' ')}" for k, n in p["oddities"].items() if n]
    if odd:
        out.append(clean(f"  odd: {', '.join(odd)}", WIDTH))
    out += ["", f"  {'device' if p['device_time'] else 'host'} time by path"]
    out += _table(p["time_table"])
    if p["kernels"]:
        out += ["", "  kernels"]
        out += _rows([(r["path"], r["calls"], r["ms"], r["share"], r["name"]) for r in p["kernels"]])
    if p["ops"]:
        out += ["", "  host ops, own time"]
        out += _rows([(r["path"], r["calls"], r["self_ms"], r["share"], r["op"]) for r in p["ops"]])
    out.append("")
    for key, value in (p["rates"] | p["gaps"]).items():
        out.append(_figure(key.replace("_", " "), value, percent=True))
    out.append(_figure("occupancy", p["occupancy_percent"]))
    out.append(_figure("matrix units", p["tensor_core_share"], percent=True))
    for key, value in p["steps"].items():
        if isinstance(value, Number):
            out.append(_figure(f"step {key.removesuffix('_ms')}", value))
    return out


def _stacks(p: dict[str, Any]) -> list[str]:
    out = [clean(f"  {p['format']}, {p['samples']} samples, {len(p['threads'])} threads", WIDTH)]
    out += _salvage(p.get("salvage"))
    if p.get("bad_lines"):
        out.append(f"  {p['bad_lines']} lines could not be read, the first is line {p['first_bad_line']}")
    if p.get("unbalanced") or p.get("skipped"):
        out.append(f"  {p.get('unbalanced') or 0} unbalanced and {p.get('skipped') or 0} unusable events")
    if p.get("cut") and not p.get("salvage"):
        out.append(clean(f"  cut: {p['cut']}", WIDTH))
    out += ["", "  time by path"]
    out += _table(p["time_table"])
    out += ["", "  innermost functions"]
    for row in p["functions"][:_TOP]:
        out.append(clean(f"  {row['share']:6.1%}  {row['path']:<14}  {row['name']}", WIDTH))
    for key, value in p["rates"].items():
        out.append(_figure(key.replace("_", " "), value, percent=True))
    return out


def _other(p: dict[str, Any]) -> list[str]:
    """A payload of another reader, in its own lines."""
    from sparsetui.ingest import checkpoints, matrices

    told = checkpoints.render(p) if p["kind"] == "checkpoint" else matrices.render(p)
    return [clean(f"  {line}", 120) for line in told]


def _salvage(s: dict[str, Any] | None) -> list[str]:
    if not s:
        return []
    out = []
    if s.get("repaired_events") or s.get("lost_events"):
        where = s.get("first_lost") or {}
        at = f", the first at byte {where['byte']}, line {where['line']}" if where.get("byte") is not None else ""
        out.append(f"  damaged: {s.get('repaired_events', 0)} events repaired, {s.get('lost_events', 0)} lost{at}")
    if s.get("cut"):
        where = s.get("cut_at") or {}
        at = f" at byte {where['byte']}, line {where['line']}" if where.get("byte") is not None else ""
        out.append(clean(f"  cut: {s['cut']}{at}; the last good event is {s['last_good_event']}", 160))
    return out


def _table(table: TimeTable) -> list[str]:
    if not table.paths:
        return ["  nothing took any time"]
    out = []
    for row in table.paths:
        value = row.share.value or 0.0
        interval = f" [{row.share.ci[0]:.1%}, {row.share.ci[1]:.1%}]" if row.share.ci else ""
        told = row.callers[0] if row.callers else (row.symbols[0] if row.symbols else "")
        out.append(clean(f"  {value:6.1%}{interval}  {row.path:<14}  {told}", WIDTH))
    return out


def _rows(rows: Sequence[tuple[str, Any, float, float, str]]) -> list[str]:
    return [
        clean(f"  {share:6.1%}  {ms:10.3f} ms  {calls or 0:>7}×  {path:<14}  {name}", WIDTH)
        for path, calls, ms, share, name in rows[:_TOP]
    ]


def _ranks(ranks: dict[str, Any]) -> list[str]:
    out = ["ranks", "  rank       span    compute  collectives   idle   step p50"]
    for r in ranks["ranks"]:
        name = r["file"].rsplit("/", 1)[-1] if r["rank"] is None else r["rank"]
        idle = "–" if r["idle_share"] is None else f"{r['idle_share']:.0%}"
        line = (
            f"  {name!s:<6} {_ms(r['span_ms']):>9} {_ms(r['compute_ms']):>10} {_ms(r['collective_ms']):>12} {idle:>6}"
        )
        out.append(clean(f"{line} {_ms(r['step_p50_ms']):>10}", WIDTH))
    if ranks["absent"]:
        few = ", ".join(map(str, ranks["absent"])) if len(ranks["absent"]) < 9 else ""
        told = f"rank {few}" if few else f"most of its {ranks['world_size']} ranks"
        out.append(clean(f"  not among the files: {told}", WIDTH))
    ratio = ranks.get("compute_ms_max_over_min")
    if ratio and not ranks["doubts"]:
        told = f"  most compute: rank {ranks['most_compute']} ({ratio:.2f}× the least); most in collectives: rank "
        out.append(clean(told + str(ranks["most_collective"]), WIDTH))
    return [*out, ""]


def _comparison(c: dict[str, Any]) -> list[str]:
    told = {"trace": _compared_traces, "stacks": _compared_stacks, "checkpoint": _compared_tensors}
    out = told.get(c["kind"], _compared_matrices)(c)
    for key, where in (("only_failing", "only here"), ("only_against", "only there")):
        if c[key] and c["kind"] != "trace":
            out += ["", f"  {where}", *(clean(f"  {name}", WIDTH) for name in c[key][:_TOP])]
    return out


def _compared_stacks(c: dict[str, Any]) -> list[str]:
    out = [f"comparison, {c['unit']}, largest difference first"]
    for r in c["paths"][:_TOP]:
        ends = f" [{r['difference'].ci[0]:+.1%}, {r['difference'].ci[1]:+.1%}]" if r["difference"].ci else ""
        difference = r["difference"].value or 0.0
        out.append(clean(f"  {difference:+7.1%}{ends}  {r['against']:6.1%} → {r['failing']:6.1%}  {r['name']}", WIDTH))
    out += ["", "  innermost functions, largest difference first"]
    for r in c["functions"][:_TOP]:
        line = f"  {r['difference']:+7.1%}  {r['against']:6.1%} → {r['failing']:6.1%}  {r['path']:<14}  {r['name']}"
        out.append(clean(line, WIDTH))
    return out


def _compared_tensors(c: dict[str, Any]) -> list[str]:
    out = [f"comparison: {c['differing']} tensors differ, {c['alike']} are alike"]
    for r in c["tensors"][:_TOP]:
        f, a = r["failing"], r["against"]
        zeros = "" if f["zeros"] is None or a["zeros"] is None else f"zeros {a['zeros']:.1%} → {f['zeros']:.1%}  "
        kinds = ", ".join(f"{k} {a[k]} → {f[k]}" for k in r["differs"] if k in ("shape", "dtype", "layout"))
        out.append(clean(f"  {zeros}{r['name']}  {kinds}", WIDTH))
    return out


def _compared_matrices(c: dict[str, Any]) -> list[str]:
    out = ["comparison"]
    for r in c["matrices"][:_TOP]:
        f, a = r["failing"], r["against"]
        out.append(clean(f"  zeros {a['zeros'] or 0:.2%} → {f['zeros'] or 0:.2%}  {a['file']} → {f['file']}", WIDTH))
        out += [f"  time as {name:<10} {ratio:.2f}×" for name, ratio in r["time_ratio"].items()]
    return out


def _compared_traces(c: dict[str, Any]) -> list[str]:
    gap = c["budget"].gap_ms.value or 0.0
    out = [f"comparison, {c['unit']}, by {c['basis']}: {gap:+.3f} ms", "  budget of the difference"]
    for line in (
        c["budget"].lines[:_TOP]
        if len(c["budget"].lines) <= _TOP
        else (*c["budget"].lines[:_TOP], c["budget"].lines[-1])
    ):
        share = "" if line.share.value is None else f"{line.share.value:7.0%}"
        out.append(clean(f"  {line.ms.value or 0.0:+12.3f} ms {share}  {line.mechanism}", WIDTH))
    for key in ("kernels", "ops"):
        if c[key]:
            out += ["", f"  {key}, largest difference first"]
        for r in c[key][:_TOP]:
            only = "  only here" if not r["against_calls"] else ("  only there" if not r["failing_calls"] else "")
            told = f"  {r['difference_ms']:+12.3f} ms  {r['failing_ms']:10.3f} → {r['against_ms']:10.3f}{only}  {r['name']}"
            out.append(clean(told, WIDTH))
    return out


def _figure(name: str, value: Number, *, percent: bool = False) -> str:
    if value.value is None:
        return clean(f"  {name:<16} unavailable: {value.reason}", 140)
    told = f"{value.value:.1%}" if percent else f"{value.value:.3g} {value.unit}".rstrip()
    if value.ci:
        low, high = value.ci
        told += f" [{low:.1%}, {high:.1%}]" if percent else f" [{low:.3g}, {high:.3g}]"
    mark = "" if value.quality == "measured" else f"  {value.quality}: {value.reason or ''}"
    return clean(f"  {name:<16} {told}{mark}", 140)


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1e3:.2f} s" if value >= 10_000 else f"{value:.4g} ms"


def _wrapped(text: str, indent: str) -> Iterable[str]:
    import textwrap

    return textwrap.wrap(clean(text), WIDTH, initial_indent=indent + "? ", subsequent_indent=indent + "  ")
