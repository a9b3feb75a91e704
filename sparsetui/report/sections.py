"""Named blocks that the release tools leave in a session (matrix, replay, lens, rollback, import …), drawn generically.

A section's body is plain JSON. A list of objects becomes a table, an object of figures a table of two columns, so a
tool may add a column without an edit here; what has a figure of its own is drawn in addition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsetui.evidence.records import Number
from sparsetui.report.document import Block, Cell, Code, Heading, Lens, Para, Table
from sparsetui.report.facts import Facts
from sparsetui.report.numbers import as_number, brief, figure
from sparsetui.report.plots import LensPoint, Zone

# sections with a place of their own in the memo; any other follows under its own name
PLACED = ("matrix", "lens", "replay", "rollback", "rehearsal")
MAX_ROWS = 200


def matrix_section(f: Facts) -> list[Block]:
    return _titled(f, "matrix", "Trade-off matrix")


def replay_section(f: Facts) -> list[Block]:
    return _titled(f, "replay", "Replay")


def lens_section(f: Facts) -> list[Block]:
    body = f.state.sections.get("lens")
    if body is None:
        return []
    blocks: list[Block] = [Heading("Bandwidth lens")]
    points, zones = lens_data(body)
    if points:
        caption = "Upwards: working-set pressure against the measured roof; to the right: each measured run."
        blocks.append(Lens(points, zones, caption))
    return blocks + section_blocks(body)


def other_sections(f: Facts) -> list[Block]:
    blocks: list[Block] = []
    for name in sorted(f.state.sections):
        if name not in PLACED:
            blocks += [Heading(str(name).replace("_", " ").capitalize()), *section_blocks(f.state.sections[name])]
    return blocks


def lens_data(body: Any) -> tuple[tuple[LensPoint, ...], tuple[Zone, ...]]:
    """``{points: [{label, pressure, tail}], zones: [{name, low}]}`` as the chart takes it; figures may be Numbers."""
    points: list[LensPoint] = []
    zones: list[Zone] = []
    if isinstance(body, Mapping):
        for i, raw in enumerate(body.get("points") or ()):
            if isinstance(raw, Mapping) and (pressure := as_number(raw.get("pressure")).value) is not None:
                tail = as_number(raw.get("tail", raw.get("tail_ratio"))).value
                points.append(LensPoint(str(raw.get("label", raw.get("name", i + 1))), pressure, tail))
        lows = [(raw, as_number(raw.get("low")).value) for raw in body.get("zones") or () if isinstance(raw, Mapping)]
        zones = [Zone(str(raw.get("name", "")), low) for raw, low in lows if low is not None]
    return tuple(points), tuple(zones)


def _titled(f: Facts, name: str, title: str) -> list[Block]:
    body = f.state.sections.get(name)
    return [] if body is None else [Heading(title), *section_blocks(body)]


def section_blocks(body: Any, level: int = 3) -> list[Block]:
    """The blocks of one section's body: scalars first, then its tables, each under its key."""
    if isinstance(body, str):
        return [Para(body)] if body else []
    if isinstance(body, (list, tuple)):
        return _list_blocks(body)
    if not isinstance(body, Mapping):
        return [Para(_value(body))]
    blocks: list[Block] = []
    scalars = [(k, v) for k, v in body.items() if _is_scalar(v)]
    text = [v for k, v in scalars if k in ("summary", "note", "text") and isinstance(v, str) and v]
    blocks.extend(Para(t) for t in text)
    rows = tuple((_name(k), _value(v)) for k, v in scalars if k not in ("summary", "note", "text") and _value(v))
    blocks.append(Table(("fact", "value"), rows))
    for key, value in body.items():
        if _is_scalar(value) or not value:
            continue
        if key not in ("rows", "columns"):
            blocks.append(Heading(_name(key).capitalize(), level))
        if key == "columns" and all(isinstance(c, str) for c in value):
            continue
        blocks.extend(_list_blocks(value) if isinstance(value, (list, tuple)) else _object_blocks(value, level))
    return [b for b in blocks if not isinstance(b, Table) or b.rows]


def _object_blocks(value: Mapping[str, Any], level: int) -> list[Block]:
    inner = list(value.values())
    if inner and all(isinstance(v, Mapping) and not _is_scalar(v) for v in inner):
        columns = list(dict.fromkeys(k for v in inner for k in v))
        if all(_is_scalar(v.get(c)) for v in inner for c in columns):
            rows = [{"": _name(name), **v} for name, v in value.items()]
            return _list_blocks(rows)
    return section_blocks(value, min(level + 1, 6))


def _list_blocks(items: Sequence[Any]) -> list[Block]:
    if not items:
        return []
    if not all(isinstance(i, Mapping) for i in items):
        return [Para(", ".join(_value(i) for i in items[:MAX_ROWS]))]
    columns = [str(c) for c in dict.fromkeys(k for i in items for k in i)]
    columns = [c for c in columns if any(_value(i.get(c)) for i in items)]
    rows: list[tuple[Cell, ...]] = [tuple(_cell(c, i.get(c)) for c in columns) for i in items[:MAX_ROWS]]
    blocks: list[Block] = [Table(tuple(_name(c) for c in columns), tuple(rows))]
    if len(items) > MAX_ROWS:
        blocks.append(Para(f"{len(items) - MAX_ROWS} more rows are in the session."))
    return blocks


def _cell(column: str, value: Any) -> Cell:
    text = _value(value)
    return Code(text) if column in ("sha256", "evidence", "mechanism") and text else text


def _is_scalar(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "value" in value or "quality" in value
    return not isinstance(value, (list, tuple)) or (
        len(value) <= 12 and all(isinstance(v, (str, int, float)) for v in value)
    )


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Number) or (isinstance(value, Mapping) and _is_scalar(value)):
        return figure(as_number(value))
    if isinstance(value, (int, float)):
        return str(value) if isinstance(value, int) else brief(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(_value(v) for v in value)
    if isinstance(value, Mapping):
        return "; ".join(f"{_name(k)} {_value(v)}" for k, v in value.items() if _value(v))
    return str(value)


def _name(key: Any) -> str:
    return str(key).replace("_", " ")
