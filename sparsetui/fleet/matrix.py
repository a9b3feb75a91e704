"""The trade-off matrix over nodes: signatures spread over nodes of one lock, whole steps on each; one session here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sparsetui.evidence.records import Evidence, Number
from sparsetui.evidence.text import clean
from sparsetui.fleet import tables
from sparsetui.fleet.bundle import Manifest
from sparsetui.fleet.records import Part, Survey
from sparsetui.fleet.run import FleetRun
from sparsetui.release import closing
from sparsetui.release.arms import REFERENCE
from sparsetui.report.numbers import as_number, figure
from sparsetui.runner.passes import compare_locks

SECTION = "fleet_matrix"
SURVEY, PART = "survey", "matrix"  # probes
_WHOLE = "whole steps"


class FleetMatrix(FleetRun):
    """A run whose hosts measure the matrix together. In a saved session only what is missing is measured, as long as the
    workload's folder is the same; parts of another one stay in the session and out of the tables.
    """

    section = SECTION
    stage = "release"
    title = "matrix over a fleet"

    def __init__(self, *args: Any, **options: Any) -> None:
        self.surveys: dict[str, Survey] = {}
        self.parts: dict[tuple[str, str, str], Part] = {}  # lock, signature, host (of whole steps only)
        self.proof: dict[tuple[str, str, str], Evidence] = {}
        self.lost: dict[str, tuple[str, str]] = {}
        self.moved: list[dict[str, str]] = []
        super().__init__(*args, **options)

    # -- the run -------------------------------------------------------------------------------------------------------

    def job(self, files: Manifest) -> dict[str, Any]:
        self.lost = {}
        self.parts = {k: p for k, p in self.parts.items() if p.code == files.digest}
        done = [p for p in self.parts.values() if not p.why]
        return {"code": files.digest, "matrix": {"done": [[p.lock_id, p.signature] for p in done if p.signature],
                                                 "whole": [[p.lock_id, p.host] for p in done if not p.signature]}}  # fmt: skip

    def unanswered(self) -> list[str]:
        return [h for h in self.plan if h not in self.lost]

    def heard(self, kind: str, host: str, event: Mapping[str, Any]) -> None:
        if kind == "surveyed":
            self._surveyed(host, event["survey"])
        elif kind == "taken":
            self._taken(host, str(event["signature"]), str(event["instead_of"]))
        elif kind == "part":
            self._land(host, event["part"])

    def failed(self, host: str, kind: str, why: str) -> None:
        self.lost[host] = (kind, why)
        self.journal.append("fault", {"what": f"host {host}: {kind}", "why": why})
        self.over(host, kind, why)
        self.set(host, state=kind, why=why, phase="")

    def _surveyed(self, host: str, raw: Any) -> None:
        try:
            survey = msgspec.structs.replace(msgspec.convert(raw, Survey), host=host)
        except msgspec.ValidationError as e:
            self.failed(host, "broken", f"its survey cannot be read: {clean(e, 200)}")
            return
        if survey.state != "done":
            self.failed(host, survey.state, clean(survey.why, 400))
            return
        self.surveys[host] = survey
        said = f"{host}: {len(survey.signatures)} signatures, lock {survey.lock_id}"
        self.journal.evidence(
            self.stage, SURVEY, msgspec.to_builtins(survey), summary=said, seconds=survey.seconds,
            source=self._source(host, survey.lock_id),
        )  # fmt: skip
        self.set(host, state="waiting", lock=survey.lock_id, phase="")

    def _taken(self, host: str, signature: str, instead_of: str) -> None:
        phase = signature or _WHOLE
        if instead_of:
            self.moved.append({"signature": signature, "from": instead_of, "to": host})
            phase += f", instead of {instead_of}"
        self.set(host, state="running", phase=phase, spent_s=0.0, budget_s=0.0)

    def _land(self, host: str, raw: Any) -> None:
        """What a node measured becomes evidence. What was measured is never replaced by what was not."""
        try:
            part = msgspec.structs.replace(msgspec.convert(raw, Part), host=host)
        except msgspec.ValidationError as e:
            self.journal.append("fault", {"what": f"host {host}: a part of the matrix", "why": clean(e, 200)})
            return
        key = _key(part)
        known = self.parts.get(key)
        if part.why:
            self.journal.append("fault", {"what": f"host {host}: {part.signature or _WHOLE}", "why": part.why})
            if known is not None and not known.why:
                return
        said, figures = _said(part)
        self.parts[key] = part
        self.proof[key] = self.journal.evidence(
            self.stage, PART, msgspec.to_builtins(part), summary=said, figures=figures, seconds=part.seconds,
            quality="unavailable" if part.why else "measured",
            source={**self._source(host, part.lock_id), "signature": part.signature or _WHOLE},
        )  # fmt: skip
        self.set(host, state="waiting", phase="", says=tables.did(self._of(host)))

    def _of(self, host: str) -> list[Part]:
        return [p for p in self.parts.values() if p.host == host and not p.why]

    def _source(self, host: str, lock: str) -> dict[str, str]:
        return {"host": host, "lock": lock, "workload": self.workload.sha256, **self.provenance(host)}

    # -- the record ----------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        state, read = self.state(), self.writer.read_artifact
        for e in state.evidence:
            if not e.sha256 or "host" not in e.source or e.source.get("workload") != self.workload.sha256:
                continue
            try:
                if e.probe == SURVEY:
                    survey = msgspec.json.decode(read(e.sha256), type=Survey)
                    self.surveys[survey.host] = survey
                elif e.probe == PART:
                    part = msgspec.json.decode(read(e.sha256), type=Part)
                    self.parts[_key(part)], self.proof[_key(part)] = part, e
            except msgspec.DecodeError:  # of a newer tool
                continue
        body = state.sections.get(SECTION)
        if isinstance(body, Mapping):
            self.moved = [dict(m) for m in body.get("moved") or ()]

    def conclude(self) -> Any:
        """The section as it stands; where whole steps were measured, one node's matrix stands for the session's own."""
        for h in self.surveys:
            if h not in self.lost and h in self._live:
                self.over(h, "done")
                self.set(h, state="done", phase="", says=tables.did(self._of(h)))
        parts = list(self.parts.values())
        missing = {**{h: ("lost", "no answer came") for h in self.plan if h not in self.surveys}, **self.lost}
        body: dict[str, Any] = msgspec.to_builtins(
            tables.section(self.surveys, parts, missing, self.moved, self.about())
        )
        self.journal.append("section", {"name": SECTION, "body": body})
        groups = tables.by_lock(self.surveys, parts)
        first = next((self.surveys[h] for hosts in groups.values() for h in hosts if h in self.surveys), None)
        if first is not None:
            locks = (first.lock["failing"], first.lock["comparator"])
            self.journal.append("lock", compare_locks(*locks, self.workload.change))
        for hosts in groups.values():
            one = next((p for p in parts if p.host in hosts and not p.signature and p.body.get("rows")), None)
            if one is not None:
                about = {"host": one.host, "lock": one.lock_id, "evidence": self.proof[_key(one)].id}
                self.journal.append("section", {"name": "matrix", "body": {**one.body, **about}})
                break
        closing.walk_again(self.journal)
        closing.evaluate(self.journal)
        return body


def _key(p: Part) -> tuple[str, str, str]:
    return p.lock_id, p.signature, "" if p.signature else p.host


def _said(p: Part) -> tuple[str, dict[str, Number]]:
    """One line on a part, and the figures that stand beside it."""
    what = p.signature or _WHOLE
    if p.why:
        return f"{p.host}: {what}: {p.why}", {}
    if p.signature:
        name, n = tables.best(tables.ratios(p))
        told = f", {figure(n, unit='×', count=False)} of dense" if n.value is not None else ""
        return f"{p.host}: {what}: {name}{told}", {} if n.value is None else {f"{what}: {name} against dense": n}
    rows = {str(r["name"]): as_number(r.get("against_dense")) for r in p.body["rows"] if r["name"] != REFERENCE}
    known = sorted(((n.value, f) for f, n in rows.items() if n.value is not None))
    said = f"{p.host}: {what}: {clean(p.body['summary'], 300)}"
    return said, {f"{what}: {f} against dense": rows[f] for _, f in known[:12]}
