"""From a finding down to what it rests on: its ops, what is nested in them, the stacks under which they ran, the artifact.

The artifacts are those of the census (ops with layouts, operands and modules), the profile (ops nested in others, over all
modules) and the native pass (symbols and callers by path). What an older or damaged one lacks is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsetui.evidence.records import Evidence, Finding
from sparsetui.evidence.text import clean
from sparsetui.report.numbers import as_number, brief, figure
from sparsetui.session.state import SessionState

MOST = 200  # lines of one level
INSIDE = "inside "  # how a finding names the op that holds a hidden one


@dataclass(frozen=True)
class Item:
    """A line of the browser. ``kind`` says what it is: op, hidden, nested, stack, frame, symbol or artifact.

    ``details`` are ``(label, text)`` pairs, ``below`` the next level down, ``needle`` the words by which its place
    in the artifact of evidence ``of`` is found.
    """

    key: str
    kind: str
    name: str
    what: str
    of: str
    details: tuple[tuple[str, str], ...] = ()
    below: tuple[Item, ...] = field(default=(), repr=False)
    needle: tuple[str, ...] = ()


Load = Callable[[Evidence], Any]


class Drill:
    """Levels below a finding or an evidence. ``load`` gives an artifact as plain objects and raises what it likes."""

    def __init__(self, state: SessionState, load: Load) -> None:
        self.state = state
        self._load = load
        self._known: dict[str, Mapping[str, Any]] = {}

    def of_finding(self, finding: Finding) -> list[Item]:
        """The ops that the finding names, each with what is nested in it, its stack and the artifacts that tell of it."""
        census = self._newest("census", "failing", finding.evidence)
        wanted = {(p.module, p.op) for p in finding.where}
        places = {p.module for p in finding.where if not p.op}
        ops = [
            self._op(census, row)
            for row in self._rows(census)
            if (_place(row), row.get("op")) in wanted or _place(row) in places
        ]
        profile = self._newest("profile", "failing", finding.evidence)
        hidden = [
            self._hidden(profile, p.module[len(INSIDE) :], p.op) for p in finding.where if p.module.startswith(INSIDE)
        ]
        return [*ops, *(h for h in hidden if h is not None)][:MOST]

    def _hidden(self, profile: Evidence | None, outer: str, op: str) -> Item | None:
        """A conversion that no line of the user's code asks for: the profile saw it inside the product ``outer``."""
        if profile is None:
            return None
        rows = _list(self._payload(profile), "hidden")
        row = next((r for r in rows if (r.get("product"), r.get("op")) == (outer, op)), None)
        if row is None:
            return None
        steps = max(1.0, _float(self._payload(profile).get("steps")) or 1.0)
        ms = brief(_float(row.get("total_ms")) / steps)
        needle = (f'"product": "{outer}"', f'"op": "{op}"')
        native = self._newest("native", "failing")
        below = [*self._stacks(native, "conversion"), *self._nested(profile, outer), self.artifact(profile, needle)]
        details = (("inside", outer), ("calls", f"{brief(_float(row.get('calls')) / steps)} a step"),
                   ("takes", f"{ms} ms a step with all it holds, under the profiler"))  # fmt: skip
        return Item(f"H:{outer}:{op}", "hidden", f"{op} {INSIDE}{outer}", f"{ms} ms a step", profile.id, details,
                    tuple(below), needle)  # fmt: skip

    def of_evidence(self, evidence: Evidence) -> list[Item]:
        """What an artifact lists, costliest first; nothing where it holds no list of that kind."""
        if evidence.probe == "census":
            rows = sorted(self._rows(evidence), key=lambda r: -_float(r.get("ns")))
            return [self._op(evidence, row) for row in rows][:MOST]
        if evidence.probe == "profile":
            return self._nested(evidence, None)
        if evidence.probe == "native":
            return [self._stack(evidence, p) for p in _list(self._payload(evidence), "paths")][:MOST]
        return []

    def artifact(self, evidence: Evidence, needle: tuple[str, ...] = ()) -> Item:
        about = f"{evidence.probe} as it was stored"
        return Item(f"A:{evidence.id}", "artifact", evidence.id, about, evidence.id, needle=needle)

    # what is in the artifacts

    def _payload(self, evidence: Evidence | None) -> Mapping[str, Any]:
        if evidence is None or not evidence.sha256:
            return {}
        if evidence.sha256 not in self._known:
            try:
                found = self._load(evidence)
            except Exception:  # damaged or missing: opening the artifact itself says so
                found = {}
            self._known[evidence.sha256] = found if isinstance(found, Mapping) else {}
        return self._known[evidence.sha256]

    def _rows(self, evidence: Evidence | None) -> list[Mapping[str, Any]]:
        return _list(self._payload(evidence), "rows")

    def _newest(self, probe: str, variant: str, preferred: Sequence[str] = ()) -> Evidence | None:
        found = [e for e in self.state.evidence if e.probe == probe and e.variant in (variant, None) and e.sha256]
        return next((e for e in reversed(found) if e.id in preferred), found[-1] if found else None)

    def _op(self, census: Evidence | None, row: Mapping[str, Any]) -> Item:
        assert census is not None
        payload, op = self._payload(census), str(row.get("op", "?"))
        steps = max(1.0, _float(payload.get("steps")) or 1.0)
        place, path = _place(row), str(row.get("path") or "")
        ms = _float(row.get("ns")) / 1e6 / steps
        variant = census.variant or "failing"
        details = [("module", place or "–"), ("path", path or "–")]
        details.append(("calls", f"{brief(_float(row.get('calls')) / steps)} a step"))
        if ms:
            details.append(("takes", f"{brief(ms)} ms a step, under the census"))
        details += [("operand", _operand(side)) for side in _list(row, "sides") or _list(row, "operands")]
        details += [("output", _operand(out)) for out in _list(row, "outputs")]
        details += _weight(row.get("weight"))
        profile, native = self._newest("profile", variant), self._newest("native", variant)
        below = [*self._stacks(native, path), *self._inside(profile, op)]
        below.append(self.artifact(census, (f'"op": "{op}"', f'"module": "{row.get("module", "")}"')))
        below += [self.artifact(e) for e in (profile, native) if e is not None]
        what = f"{path}  {brief(ms)} ms a step" if ms else path
        key = f"O:{census.id}:{place}:{op}:{path}:{_shapes(row)}"
        return Item(key, "op", f"{place} {op}".strip(), what, census.id, tuple(details), tuple(below))

    def _inside(self, profile: Evidence | None, op: str) -> list[Item]:
        """What the profile saw nested in ``op``; else, where ``op`` itself is nested, all that its outermost op holds."""
        rows = self._rows(profile)
        own = [r for r in rows if r.get("within") == op]
        outer = op if own else next((str(r["within"]) for r in rows if r.get("op") == op and r.get("within")), None)
        return self._nested(profile, outer) if profile is not None and outer else []

    def _nested(self, profile: Evidence, outer: str | None) -> list[Item]:
        """The rows within ``outer``, or all of the outermost ops, costliest first."""
        rows, steps = self._rows(profile), max(1.0, _float(self._payload(profile).get("steps")) or 1.0)
        mine = [r for r in rows if (r.get("within") or None) == outer]
        mine.sort(key=lambda r: -_float(r.get("self_ms")))
        found = []
        for row in mine[:MOST]:
            op = str(row.get("op", "?"))
            own, whole = _float(row.get("self_ms")) / steps, _float(row.get("total_ms")) / steps
            calls = f"{brief(_float(row.get('calls')) / steps)} a step"
            below = self._nested(profile, op) if op != outer and outer is None else []
            details = (
                ("within", outer or "nothing: it is outermost"),
                ("calls", calls + ", over all modules"),
                ("self", f"{brief(own)} ms a step, under the profiler"),
                ("whole", f"{brief(whole)} ms a step, with what is nested in it"),
            )
            needle = (f'"op": "{op}"', f'"within": "{outer or ""}"')
            below.append(self.artifact(profile, needle))
            inside = f" in {outer}" if outer else ""
            found.append(
                Item(f"N:{outer}:{op}", "nested", op, f"{brief(own)} ms a step itself{inside}", profile.id, details,
                     tuple(below), needle)
            )  # fmt: skip
        return found

    def _stacks(self, native: Evidence | None, path: str) -> list[Item]:
        if native is None or not path:
            return []
        paths = {p.get("path"): p for p in _list(self._payload(native), "paths")}
        seen = paths.get(path) or paths.get(path.removesuffix("-rhs"))  # some kernels cannot be told apart from outside
        return [self._stack(native, seen)] if seen else []

    def _stack(self, native: Evidence, path: Mapping[str, Any]) -> Item:
        name = str(path.get("path", "?"))
        callers, symbols = _words(path.get("callers")), _words(path.get("symbols"))
        share = figure(as_number(path.get("share")), percent=True)
        frames = [
            *(Item(f"C:{name}:{c}", "frame", c, "the Python frame that led there", native.id, needle=(f'"{c}"',))
              for c in callers),
            *(Item(f"Y:{name}:{s}", "symbol", s, "the symbol that ran", native.id, needle=(f'"{s}"',)) for s in symbols),
        ]  # fmt: skip
        what = f"{share} of samples: {symbols[0] if symbols else 'no symbol'}"
        details = (
            ("path", name),
            ("share", share),
            *(("called from", c) for c in callers),
            *(("ran", s) for s in symbols),
        )
        needle = (f'"path": "{name}"',)
        return Item(f"S:{native.id}:{name}", "stack", name, what, native.id, details,
                    (*frames, self.artifact(native, needle)), needle)  # fmt: skip


def line_of(text: Sequence[str], needle: Sequence[str]) -> int:
    """The line of an artifact where the words of ``needle`` stand close together, in their order; 0 where they do not."""
    if not needle:
        return 0
    for i, line in enumerate(text):
        if needle[0] in line and all(any(n in near for near in text[max(0, i - 8) : i + 9]) for n in needle[1:]):
            return i
    return 0


def _place(row: Mapping[str, Any]) -> str:
    return str(row.get("module") or row.get("place") or "")


def _operand(side: Any) -> str:
    if not isinstance(side, Mapping):
        return "–"
    shape = ",".join(str(d) for d in _plain(side.get("shape")))
    text = f"{side.get('layout', '?')} {side.get('dtype', '')} [{shape}]"
    strides = _plain(side.get("strides"))
    if strides:
        text += f" strides {','.join(str(s) for s in strides)}"
    if side.get("name"):
        text += f" {side['name']}"
    return text + ("" if not side.get("derived") else f" ({side['derived']})")


def _weight(weight: Any) -> list[tuple[str, str]]:
    if not isinstance(weight, Mapping):
        return []
    sizes = weight.get("bytes") if isinstance(weight.get("bytes"), Mapping) else {}
    assert isinstance(sizes, Mapping)
    found = [("weight", f"{weight.get('name', '')} {weight.get('layout', '')}, "
                        f"{100 * _float(weight.get('zeros')):.1f} % zeros, {brief(_float(weight.get('nnz')))} stored")]  # fmt: skip
    if sizes:
        parts = [f"{brief(_float(v) / 1024)} KiB {k}" for k, v in sizes.items()]
        found.append(("bytes", ", ".join(parts)))
    return found


def _shapes(row: Mapping[str, Any]) -> str:
    return "x".join(str(_plain(o.get("shape"))) for o in _list(row, "operands"))


def _list(payload: Any, key: str) -> list[Mapping[str, Any]]:
    found = payload.get(key) if isinstance(payload, Mapping) else None
    return [x for x in found if isinstance(x, Mapping)] if isinstance(found, (list, tuple)) else []


def _plain(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _words(value: Any) -> list[str]:
    return [clean(x, 300) for x in _plain(value)]


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
