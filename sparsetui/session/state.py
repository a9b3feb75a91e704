"""The state of a session: a pure fold over its ledger's events.

Nothing here reads or writes files. The app, the memo and ``sessions show`` all see a session through this type, whether
it is being written now or was saved last year.

Event kinds and their bodies (each body is plain JSON):

========== =====================================================================================
kind       body
========== =====================================================================================
session    ``{title, workload, host, tool}``: always the first event
workload   ``{path, sha256, spec, files}``: the spec as read, and the files that will be run
command    ``{argv, why, pid}``: every process started
phase      ``{stage, name, state, seconds, note}``; state is started, done, failed or cancelled
evidence   an :class:`~sparsetui.evidence.records.Evidence`
lock       a :class:`~sparsetui.evidence.records.Lock`
ops        ``{rows: [OpRow]}``: the op table, newest wins
native     a :class:`~sparsetui.evidence.records.TimeTable`
metrics    the metrics of the result so far, newest wins key by key
finding    a :class:`~sparsetui.evidence.records.Finding`; newest wins per mechanism; material or ruled out
unanswered an :class:`~sparsetui.evidence.records.Unanswered`
budget     a :class:`~sparsetui.evidence.records.RegressionBudget`
playbook   ``{id, title, trail: [{step, stage, ask, found, next}]}``
result     a whole :class:`~sparsetui.evidence.records.Result`
owner      ``{role, who, source}``
gate       a :class:`~sparsetui.evidence.records.Gate`, newest wins per gate
artifact   ``{role, evidence, why}``: an evidence attached as a role's closure artifact
waiver     ``{gate, why, by}``
signoff    ``{role, who, note}``
note       ``{text, by}``
log        ``{source, text}``: captured output of user code and tools
fault      ``{what, why}``: something of ours or of a worker died; evidence in itself
interrupted ``{why}``
closed     ``{by}``
section    ``{name, body}``: a named block of a release-half tool (matrix, replay, lens, import …), newest wins
========== =====================================================================================
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from sparsetui.evidence.records import (
    Evidence,
    Finding,
    Gate,
    Lock,
    OpRow,
    RegressionBudget,
    Result,
    TimeTable,
    Unanswered,
)


class Event(msgspec.Struct, frozen=True, gc=False):
    """One line of the ledger. ``time`` is ISO 8601 UTC; ``prev`` is the sha256 of the line before ("" on the first)."""

    seq: int
    time: str
    kind: str
    body: Any
    prev: str


class Phase(msgspec.Struct, frozen=True, gc=False):
    stage: str
    name: str
    state: str  # started, done, failed, cancelled
    seconds: float | None = None
    note: str = ""
    time: str = ""


class SessionState(msgspec.Struct, frozen=True):
    """Everything known of a session after ``events`` events."""

    id: str = ""
    title: str = ""
    workload: str = ""
    host: str = ""
    tool: str = ""
    created: str = ""
    updated: str = ""
    events: int = 0
    spec: dict[str, Any] = {}
    phases: tuple[Phase, ...] = ()
    commands: tuple[dict[str, Any], ...] = ()
    evidence: tuple[Evidence, ...] = ()
    lock: Lock | None = None
    ops: tuple[OpRow, ...] = ()
    native: TimeTable | None = None
    metrics: dict[str, Any] = {}
    findings: tuple[Finding, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()
    budget: RegressionBudget | None = None
    playbook: dict[str, Any] = {}
    result: Result | None = None
    owners: dict[str, str] = {}
    artifacts: tuple[dict[str, Any], ...] = ()
    gates: tuple[Gate, ...] = ()
    waivers: tuple[dict[str, Any], ...] = ()
    signoffs: tuple[dict[str, Any], ...] = ()
    notes: tuple[dict[str, Any], ...] = ()
    logs: tuple[dict[str, Any], ...] = ()
    faults: tuple[dict[str, Any], ...] = ()
    sections: dict[str, Any] = {}
    timeline: tuple[tuple[str, str, str], ...] = ()  # time, kind, one line
    interrupted: str | None = None
    closed: str | None = None

    @property
    def material(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.material)

    @property
    def ruled_out(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if not f.material and f.settled)


def fold(events: Iterable[Event], id: str = "") -> SessionState:
    """The state after ``events``; an unknown kind only enters the timeline, so newer sessions still open."""
    folder = Folder(id)
    folder.feed_all(events)
    return folder.state()


@contextmanager
def no_collection() -> Iterator[None]:
    """Hold the cyclic collector back while a whole ledger is read.

    It makes millions of objects and no cycle among them; walking them again and again took 40 % of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# What a body must be: the record it converts to, and the keys a plain one cannot miss.
_RECORDS: dict[str, Any] = {
    "evidence": Evidence,
    "lock": Lock,
    "native": TimeTable,
    "finding": Finding,
    "unanswered": Unanswered,
    "budget": RegressionBudget,
    "result": Result,
    "gate": Gate,
}
_KEYS: dict[str, set[str]] = {
    "session": set(),
    "workload": set(),
    "command": set(),
    "phase": {"stage", "name", "state"},
    "ops": {"rows"},
    "metrics": set(),
    "playbook": set(),
    "owner": {"role", "who"},
    "artifact": {"role", "evidence"},
    "waiver": {"gate", "why", "by"},
    "signoff": {"role", "who"},
    "note": {"text"},
    "log": {"text"},
    "fault": {"what"},
    "interrupted": set(),
    "closed": set(),
    "section": {"name", "body"},
}
_LAST_WINS = frozenset({"lock", "native", "budget", "result", "playbook"})
_APPENDS = {
    "evidence": "evidence",
    "phase": "phases",
    "unanswered": "unanswered",
    "command": "commands",
    "artifact": "artifacts",
    "waiver": "waivers",
    "signoff": "signoffs",
    "note": "notes",
    "log": "logs",
    "fault": "faults",
}


def read_body(kind: str, body: Any, time: str = "") -> Any:
    """The body of an event as the fold uses it: a record, or a dictionary with the keys its kind needs.

    An unknown kind is passed through. Raises ``ValueError`` that says what is wrong.
    """
    try:
        if kind in _RECORDS:
            return msgspec.convert(body, _RECORDS[kind])
        if kind not in _KEYS:
            return body
        if not isinstance(body, dict):
            raise ValueError(f"expected an object, got {type(body).__name__}")
        if not body.keys() >= _KEYS[kind]:
            raise ValueError(f"misses {', '.join(sorted(_KEYS[kind] - body.keys()))}")
        if kind == "phase":
            return msgspec.convert({**body, "time": time}, Phase)
        if kind == "ops":
            return msgspec.convert(body["rows"], tuple[OpRow, ...])
    except (ValueError, TypeError) as e:  # msgspec's ValidationError is a ValueError
        raise ValueError(f"{kind}: {e}") from e
    return body


class Folder:
    """An incremental fold: feed events one by one, read :meth:`state` whenever it is wanted.

    A known kind whose body cannot be read (damaged, or written by a newer tool) becomes a fault and the fold goes on.
    """

    def __init__(self, id: str = "") -> None:
        self._v: dict[str, Any] = {"id": id}
        self._lists: dict[str, list[Any]] = {}
        self._maps: dict[str, dict[str, Any]] = {k: {} for k in ("metrics", "findings", "gates", "owners", "sections")}
        self._timeline: list[tuple[str, str, str]] = []
        self._state: SessionState | None = None

    def feed(self, e: Event) -> None:
        self._state = None
        v = self._v
        v["events"], v["updated"] = e.seq + 1, e.time
        v.setdefault("created", e.time)
        self._timeline.append((e.time, e.kind, _line(e)))
        try:
            self._apply(e, read_body(e.kind, e.body, e.time))
        except ValueError as error:
            fault = {"what": f"event {e.seq} could not be read", "why": str(error), "time": e.time}
            self._lists.setdefault("faults", []).append(fault)

    def feed_all(self, events: Iterable[Event]) -> None:
        """Feed many events at once, as when a session is opened."""
        with no_collection():
            for event in events:
                self.feed(event)

    def _apply(self, e: Event, body: Any) -> None:
        v, maps, kind = self._v, self._maps, e.kind
        if kind in _APPENDS:
            item = {**body, "time": e.time} if isinstance(body, dict) else body
            self._lists.setdefault(_APPENDS[kind], []).append(item)
        elif kind in _LAST_WINS:
            v[kind] = body
            if kind == "result":
                v.pop("interrupted", None)  # a later run came to its end, with all that it could not answer
                self._lists["unanswered"] = list(body.cannot_answer)
        elif kind == "session":
            v.update({k: str(body.get(k, "")) for k in ("title", "workload", "host", "tool")})
        elif kind == "workload":
            v["spec"] = body
        elif kind == "ops":
            v["ops"] = body
        elif kind == "metrics":
            maps["metrics"].update(body)
        elif kind == "finding":
            maps["findings"][body.mechanism] = body
        elif kind == "gate":
            maps["gates"][body.gate] = body
        elif kind == "owner":
            maps["owners"][str(body["role"])] = str(body["who"])
        elif kind == "section":
            maps["sections"][str(body["name"])] = body["body"]
        elif kind == "interrupted":
            v["interrupted"] = str(body.get("why", ""))
        elif kind == "closed":
            v["closed"] = str(body.get("by", ""))

    def summary(self) -> dict[str, str]:
        """What a list of sessions shows, without building the whole state."""
        v, owners = self._v, self._maps["owners"]
        found = {k: str(v.get(k, "")) for k in ("title", "workload", "host", "created", "updated")}
        if isinstance(result := v.get("result"), Result):
            verdict = result.verdict
            role = verdict.owner or ""
            found.update(status=verdict.status, mechanism=verdict.mechanism or "", role=role, who=owners.get(role, ""))
        for key in ("interrupted", "closed"):
            if v.get(key) is not None:
                found[key] = str(v[key]) or "yes"
        return {k: text[:120] for k, text in found.items() if text}

    def state(self) -> SessionState:
        """The state so far. The same object until the next event."""
        if self._state is None:
            maps = self._maps
            fields: dict[str, Any] = {**self._v, **{k: tuple(items) for k, items in self._lists.items()}}
            for name in ("metrics", "owners", "sections"):
                fields[name] = dict(maps[name])
            for name in ("findings", "gates"):
                fields[name] = tuple(maps[name].values())
            self._state = SessionState(**fields, timeline=tuple(self._timeline))
        return self._state


def _line(e: Event) -> str:
    """One line of text for the timeline."""
    b = e.body if isinstance(e.body, dict) else {}
    if e.kind == "phase":
        return f"{b.get('name', '')} {b.get('state', '')}"
    if e.kind == "evidence":
        return f"{b.get('id', '')} {b.get('probe', '')}: {b.get('summary', '')}"
    if e.kind == "finding":
        return f"{b.get('mechanism', '')} {'material' if b.get('material') else 'ruled out'}"
    if e.kind == "result":
        verdict = b.get("verdict")
        return str(verdict.get("summary", "")) if isinstance(verdict, dict) else ""
    if e.kind == "command":
        return str(b.get("why", ""))
    for key in ("text", "what", "why", "who", "gate", "name", "title", "by"):
        if key in b:
            text = str(b[key])[:400]
            return (text if text.isprintable() else next(iter(text.splitlines()), ""))[:120]
    return ""
