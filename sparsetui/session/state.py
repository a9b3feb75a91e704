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

from collections.abc import Iterable
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


class Event(msgspec.Struct, frozen=True):
    """One line of the ledger. ``time`` is ISO 8601 UTC; ``prev`` is the sha256 of the line before ("" on the first)."""

    seq: int
    time: str
    kind: str
    body: Any
    prev: str


class Phase(msgspec.Struct, frozen=True):
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
        return tuple(f for f in self.findings if not f.material)


def fold(events: Iterable[Event], id: str = "") -> SessionState:
    """The state after ``events``; an unknown kind only enters the timeline, so newer sessions still open."""
    folder = Folder(id)
    for event in events:
        folder.feed(event)
    return folder.state()


_LAST_WINS: dict[str, tuple[str, Any]] = {
    "lock": ("lock", Lock),
    "native": ("native", TimeTable),
    "budget": ("budget", RegressionBudget),
    "result": ("result", Result),
    "playbook": ("playbook", dict),
}
_APPENDS = {"command": "commands", "artifact": "artifacts", "waiver": "waivers", "signoff": "signoffs",
            "note": "notes", "log": "logs", "fault": "faults"}  # fmt: skip


class Folder:
    """An incremental fold: feed events one by one, read :meth:`state` whenever it is wanted."""

    def __init__(self, id: str = "") -> None:
        self._v: dict[str, Any] = {"id": id}
        self._lists: dict[str, list[Any]] = {}
        self._maps: dict[str, dict[str, Any]] = {k: {} for k in ("metrics", "findings", "gates", "owners", "sections")}
        self._timeline: list[tuple[str, str, str]] = []

    def feed(self, e: Event) -> None:
        v, body = self._v, e.body
        v["events"], v["updated"] = e.seq + 1, e.time
        v.setdefault("created", e.time)
        if e.kind in _LAST_WINS:
            name, type_ = _LAST_WINS[e.kind]
            v[name] = msgspec.convert(body, type_)
        elif e.kind in _APPENDS:
            self._lists.setdefault(_APPENDS[e.kind], []).append({**body, "time": e.time})
        elif e.kind == "session":
            v.update({k: str(body.get(k, "")) for k in ("title", "workload", "host", "tool")})
        elif e.kind == "workload":
            v["spec"] = body
        elif e.kind == "phase":
            self._lists.setdefault("phases", []).append(msgspec.convert({**body, "time": e.time}, Phase))
        elif e.kind == "evidence":
            self._lists.setdefault("evidence", []).append(msgspec.convert(body, Evidence))
        elif e.kind == "unanswered":
            self._lists.setdefault("unanswered", []).append(msgspec.convert(body, Unanswered))
        elif e.kind == "ops":
            v["ops"] = tuple(msgspec.convert(body["rows"], list[OpRow]))
        elif e.kind == "metrics":
            self._maps["metrics"].update(body)
        elif e.kind == "finding":
            self._maps["findings"][body["mechanism"]] = msgspec.convert(body, Finding)
        elif e.kind == "gate":
            self._maps["gates"][body["gate"]] = msgspec.convert(body, Gate)
        elif e.kind == "owner":
            self._maps["owners"][body["role"]] = body["who"]
        elif e.kind == "section":
            self._maps["sections"][body["name"]] = body["body"]
        elif e.kind == "interrupted":
            v["interrupted"] = str(body.get("why", ""))
        elif e.kind == "closed":
            v["closed"] = str(body.get("by", ""))
        self._timeline.append((e.time, e.kind, _line(e)))

    def state(self) -> SessionState:
        maps = self._maps
        return SessionState(
            **self._v,
            **{k: tuple(items) for k, items in self._lists.items()},
            metrics=dict(maps["metrics"]),
            owners=dict(maps["owners"]),
            sections=dict(maps["sections"]),
            findings=tuple(maps["findings"].values()),
            gates=tuple(maps["gates"].values()),
            timeline=tuple(self._timeline),
        )


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
        return str(b.get("verdict", {}).get("summary", ""))
    if e.kind == "command":
        return str(b.get("why", ""))
    for key in ("text", "what", "why", "who", "gate", "name", "title", "by"):
        if key in b:
            return str(b[key]).splitlines()[0][:120] if b[key] else ""
    return ""
