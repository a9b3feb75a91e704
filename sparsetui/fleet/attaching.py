"""Processes of several hosts watched from outside at the same time, in one session: the ranks of one run, live."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import sparsetui
from sparsetui.diagnosis import ranks
from sparsetui.evidence.records import Number
from sparsetui.evidence.text import clean
from sparsetui.fleet.link import Link, Order
from sparsetui.fleet.run import FleetError
from sparsetui.fleet.watch import RankReport
from sparsetui.session.store import Store
from sparsetui.session.writer import Writer

Target = tuple[str, int]  # host, pid
Say = Callable[[str], None]


def parse(text: str) -> list[Target]:
    """``a:123,b:456`` as targets. Raises ValueError with one line."""
    found: list[Target] = []
    for part in text.split(","):
        host, _, pid = part.strip().rpartition(":")
        if not host or not (pid.isascii() and pid.isdigit()) or not 1 <= int(pid) < 1 << 31:
            raise ValueError(f"{part.strip()[:80]!r} is no process; accepted are HOST:PID with commas between them")
        found.append((host, int(pid)))
    if len(set(found)) != len(found):
        raise ValueError("a process is named twice")
    return found


class FleetWatch:
    """Watches the targets through Ray, each from its own node, for ``seconds``, and keeps it as one session."""

    def __init__(
        self, store: Store, targets: Sequence[Target], *, address: str, seconds: float, gentle: bool = False,
        session: str | None = None, say: Say = lambda text: None,
    ) -> None:  # fmt: skip
        self.store, self.targets, self.address, self.seconds = store, list(targets), address, seconds
        self.gentle, self.session, self.say = gentle, session, say
        self._link: Link | None = None
        self._cancel = threading.Event()
        self.reports: dict[Target, RankReport] = {}

    def cancel(self) -> None:
        self._cancel.set()
        if self._link is not None:
            self._link.cancel()

    def run(self) -> tuple[str, dict[str, Any]]:
        """Watch, record; returns the session's id and the section ``ranks``. Raises :class:`FleetError` on a bad address."""
        jobs = [{"host": h, "pid": p, "seconds": self.seconds, "gentle": self.gentle} for h, p in self.targets]
        hosts = list(dict.fromkeys(h for h, _ in self.targets))
        order = Order(
            self.address,
            hosts,
            "/",
            {},
            sparsetui.__version__,
            {"watch": jobs},
            limit_s=2 * self.seconds + 60,
            patience_s=60.0,
        )
        self._link = link = Link(order)
        why = "it was cancelled"
        try:
            for event in link.events():
                kind = event["event"]
                if kind in ("fatal", "cut"):
                    why = clean(event["why"], 400)
                    if kind == "fatal":
                        raise FleetError(why)
                elif kind in ("report", "failed"):
                    self._heard(event)
        finally:
            link.close()
        for target in self.targets:
            self.reports.setdefault(target, RankReport(*target, state="lost", why=why))
        return self._keep(link)

    def _heard(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "report":
            try:
                r = msgspec.convert(event["report"], RankReport)
            except msgspec.ValidationError as e:
                self.say(f"{event['host']}: its report cannot be read: {clean(e, 200)}")
                return
            found = [r]
        else:  # of a node, or of one process on it
            mine = [
                t
                for t in self.targets
                if t[0] == event["host"] and event.get("pid") in (None, t[1]) and t not in self.reports
            ]
            found = [RankReport(*t, state=event["kind"], why=clean(event["why"], 400)) for t in mine]
        for r in found:
            self.reports[(r.host, r.pid)] = r
            self.say(f"{r.name}: {_said(r)}")

    def _keep(self, link: Link) -> tuple[str, dict[str, Any]]:
        seen = [self.reports[t] for t in self.targets if self.reports[t].state == "done"]
        made = [r.rank() for r in seen]
        with self._writer() as writer:
            writer.append("command", {"argv": link.argv, "why": f"talk to Ray at {self.address}", "pid": link.pid})
            for target in self.targets:
                self._evidence(writer, self.reports[target])
            if len(made) >= 2:
                body = ranks.section(made, ranks.judge(made))
            else:
                body = {
                    "summary": f"{len(made)} of {len(self.targets)} processes could be seen: ranks are compared from two on."
                }
            missing = [
                {"rank": r.name, "state": r.state, "why": r.why} for r in self.reports.values() if r.state != "done"
            ]
            body = {**body, **({"missing": missing} if missing else {})}
            writer.append("section", {"name": "ranks", "body": body})
            return writer.id, body

    def _writer(self) -> Writer:
        if self.session is not None:
            return self.store.writer(self.session)
        return self.store.create("attach", f"{len(self.targets)} processes over a fleet")

    def _evidence(self, writer: Writer, r: RankReport) -> None:
        done = r.state == "done"
        figures = {"share of its time that it waited": Number(r.rank().share, n=r.samples, unit="")} if done else {}
        writer.evidence(
            "execution", "attach", msgspec.to_builtins(r), summary=f"{r.name}: {_said(r)}", figures=figures,
            quality="measured" if done else "unavailable", seconds=r.seconds or None,
            source={"host": r.host, "pid": r.pid, "cmdline": r.cmdline},
        )  # fmt: skip
        if not done:
            writer.append("fault", {"what": f"{r.name}: {r.state}", "why": r.why})


def _said(r: RankReport) -> str:
    if r.state != "done":
        return f"{r.state}: {r.why}"
    top = r.table.paths[0]
    return f"{top.share.value or 0:.0%} {top.path}, waits {r.rank().share:.0%} of its time, {r.samples} samples"
