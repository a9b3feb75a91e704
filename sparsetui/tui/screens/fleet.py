"""A fleet: one row a host, live; the verdict over hosts above, and the host under the cursor in full below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text
from textual.widget import Widget

from sparsetui.evidence.records import Evidence, Number
from sparsetui.evidence.text import clean
from sparsetui.report.numbers import as_number, brief, figure
from sparsetui.runner.api import Live
from sparsetui.session.state import SessionState
from sparsetui.tui.actions import Action
from sparsetui.tui.look import ACCENT, BAD, DIM, MARK, MARK_STYLE, OK, WARN, ink
from sparsetui.tui.panels import labelled
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table
from sparsetui.tui.wrapping import wrap

# state of a host -> mark, and the word that carries the meaning
_STATES = {
    "waiting": ("todo", "waits"),
    "submitted": ("todo", "asked"),
    "running": ("running", "runs"),
    "done": ("done", "done"),
    "refused": ("failed", "refused"),
    "slow": ("failed", "too slow"),
    "lost": ("failed", "lost"),
    "broken": ("failed", "broken"),
}
_ANSWERS = {"fault": ("▲ fault", BAD), "no_fault": ("✓ no fault", OK), "cannot_answer": ("– cannot tell", WARN)}
_STATUS = {
    "release": "▲ the release",
    "host": "▲ the host",
    "mixed": "▲ both",
    "no_fault": "✓ no fault",
    "cannot_answer": "– cannot tell",
}
_LABEL = 15


class Fleet(CaseSheet):
    TITLE_TEXT = "fleet"
    FOOTER = ("run_all", "cancel", "filter", "sort", "evidence", "sections", "owners", "memo", "yank", "back")

    def body(self) -> Iterable[Widget]:
        yield Panel(id="story", classes="frame", title="is it the host or the release?")
        yield Table(
            [
                Column("host", 8, 28),
                Column("state", 9, 11),
                Column("answer", 13, 44),
                Column("ratio", 18, 22),
                Column("comparator ms", 6, 13, right=True, drop=2, short="comp. ms"),
                Column("lock", 12, 12, drop=1),
                Column("", 5, 5, drop=3),
            ],
            id="hosts",
            classes="frame half",
            title="hosts",
        )
        yield Panel(id="host", classes="frame half", title="host")

    def on_mount(self) -> None:
        self.query_one("#story").can_focus = False
        super().on_mount()

    def first_focus(self) -> Widget | None:
        return self.query_one("#hosts")

    @property
    def section(self) -> Mapping[str, Any]:
        return _section(self.desk.state, "fleet")

    @property
    def matrix(self) -> Mapping[str, Any]:
        return _section(self.desk.state, "fleet_matrix")

    def show(self) -> None:
        story, table = self.query_one("#story", Panel), self.query_one("#hosts", Table)
        table.empty = self._empty()
        hosts = hosts_of(self.desk.state, self.desk.live)
        table.set_rows([_row(h, now) for h, now in hosts.items()])
        over = sum(now["state"] not in ("waiting", "submitted", "running") for now in hosts.values())
        table.set_title(f"hosts, {over} of {len(hosts)} answered" if hosts else "hosts")
        self._story(story)
        self._detail()

    def _empty(self) -> str:
        why = self.desk.why_not_run()
        return f"No host has been asked yet. R asks them{'' if why is None else ', but it cannot now: ' + why}."

    def _story(self, panel: Panel) -> None:
        """The verdict, or how far it is."""
        live, status = self.desk.live, str(self.section.get("status", ""))
        measured = str(self.matrix.get("summary", ""))
        title = f"{'–' if self.app.unicode else '-'} is it the host or the release?"
        if live.running:
            title, said = f"» running {title}", [live.message]
        elif status:
            title = f"{_STATUS.get(status, clean(status, 20))} {title}"
            said = [str(self.section.get("summary", "")), f"Matrix: {measured}" if measured else ""]
        elif measured:
            title, said = "matrix over nodes", [measured]
        else:
            said = ["The same pair runs on each host; figures of different locks are never pooled."]
            title = f"not asked {title}"
        panel.set_title(title)
        width = max(20, panel.content_size.width)
        panel.set_lines([ink(line) for text in said for line in wrap(clean(text), width)])

    def on_table_picked(self) -> None:
        self._detail()

    def heard(self) -> None:
        self.redraw()

    def _detail(self) -> None:
        """The host under the cursor."""
        panel, key = self.query_one("#host", Panel), self.query_one("#hosts", Table).key
        if key is None:
            panel.set_title("host")
            panel.set_lines([])
            return
        panel.set_title(clean(key, 40))
        width = max(20, panel.content_size.width)
        now = hosts_of(self.desk.state, self.desk.live).get(key, {})
        lines: list[Text] = []
        for label, name in (("why", "why"), ("phase", "phase"), ("mechanism", "mechanism")):
            if now.get(name):
                lines += labelled(label, now[name], width, WARN if name == "why" else "", indent=_LABEL)
        for o in self.section.get("apart") or ():
            if isinstance(o, Mapping) and o.get("host") == key:
                lines += labelled(
                    "stands apart",
                    f"{o.get('why', '')}; {figure(as_number(o.get('factor')))}",
                    width,
                    BAD,
                    indent=_LABEL,
                )
                for label, name in (("its lock", "lock"), ("its conditions", "conditions")):
                    lines += labelled(label, o.get(name) or "as elsewhere", width, indent=_LABEL)
        e = evidence_of(self.desk.state, key)
        if e is not None:
            lines += labelled("evidence", f"{e.id} {e.summary}", width, indent=_LABEL)
            for name, number in e.figures.items():
                lines += labelled(name, figure(number), width, indent=_LABEL)
            for name, text in e.source.items():
                if name != "host" and text:
                    lines += labelled(name.replace("_", " "), text, width, DIM, indent=_LABEL)
        lines += self._measured(key, now, width)
        panel.set_lines(lines or [ink("nothing is known of it yet", DIM)])

    def _measured(self, host: str, now: Mapping[str, Any], width: int) -> list[Text]:
        """What the host has measured of a matrix, and how its lock differs from the others'."""
        lines: list[Text] = []
        for lock in self.matrix.get("locks") or ():
            if isinstance(lock, Mapping) and lock.get("lock") == now.get("lock") and lock.get("differs"):
                lines += labelled("a lock apart", lock["differs"], width, WARN, indent=_LABEL)
        newest = {e.source.get("signature"): e for e in self.desk.state.evidence
                  if e.probe == "matrix" and e.source.get("host") == host}  # fmt: skip
        for e in newest.values():
            said = e.summary.removeprefix(f"{host}: ")
            lines += labelled(f"matrix {e.id}", said, width, DIM if e.quality == "unavailable" else "", indent=_LABEL)
        return lines

    def label(self, action: Action) -> str:
        return "ask hosts" if action.id == "run_all" else super().label(action)

    def why_not(self, id: str) -> str | None:
        return self.desk.why_not_run() if id == "run_all" else super().why_not(id)

    def do_run_all(self) -> None:
        self.app.start("investigation", lambda r: r.run_all())

    def yank_text(self) -> str:
        said = [clean(s.get("summary", "")) for s in (self.section, self.matrix)]
        return "\n".join(t for t in (*said, super().yank_text()) if t)


def _section(state: SessionState, name: str) -> Mapping[str, Any]:
    found = state.sections.get(name)
    return found if isinstance(found, Mapping) else {}


def _rows(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = body.get("rows")
    return [r for r in rows if isinstance(r, Mapping) and r.get("host")] if isinstance(rows, (list, tuple)) else []


def hosts_of(state: SessionState, live: Live) -> dict[str, dict[str, Any]]:
    """Each host with its state and answer: as it runs, as the section has it, or as the evidence of another's run tells."""
    found: dict[str, dict[str, Any]] = {}
    bodies = [
        _section(state, name) for name in ("fleet_matrix", "fleet")
    ]  # where both know a host, the verdict's row stays
    for body in bodies:
        if not _rows(body):
            found.update({name: {"state": "waiting"} for name in str(body.get("chosen", "")).split(", ") if name})
    for e in state.evidence:
        if e.probe == "host" and (name := str(e.source.get("host", ""))):
            done = e.quality != "unavailable"
            found[name] = {"state": "done" if done else "lost", "why": "" if done else e.summary, "lock": e.source.get("lock", ""),
                           "ratio": e.figures.get("ratio"), "comparator_ms": e.figures.get("comparator")}  # fmt: skip
    for row in (r for body in bodies for r in _rows(body)):
        done = row.get("state") == "done"
        found[str(row["host"])] = {
            **row,
            "why": "" if done else row.get("says", ""),
            "says": row.get("says", "") if done else "",
        }
    if live.running:
        for name, now in live.hosts.items():
            found[name] = {**found.get(name, {}), **now} if now.get("state") == "done" else dict(now)
    return dict(sorted(found.items()))


def evidence_of(state: SessionState, host: str) -> Evidence | None:
    """The newest evidence of a host."""
    return next((e for e in reversed(state.evidence) if e.probe == "host" and e.source.get("host") == host), None)


def _row(host: str, now: Mapping[str, Any]) -> Row:
    state = str(now.get("state", ""))
    mark, word = _STATES.get(state, ("todo", clean(state, 11)))
    ratio, level = _number(now.get("ratio")), _number(now.get("comparator_ms"))
    odd = bool(now.get("apart"))
    cells = (
        clean(host, 60),
        ink(f"{MARK[mark]} {word}", MARK_STYLE.get(mark, "")),
        _answer(state, now),
        "–" if ratio.value is None else figure(ratio, unit="×", count=False, mark=False),
        "–" if level.value is None else brief(level.value),
        clean(now.get("lock", "") or "–", 12),
        ink("apart", BAD) if odd else "",
    )
    return Row(
        host,
        cells,
        (None, None, None, ratio.value, level.value, None, 0 if odd else 1),
        hidden=clean(now.get("why", ""), 200),
    )


def _number(raw: Any) -> Number:
    return as_number(raw)


def _answer(state: str, now: Mapping[str, Any]) -> Text:
    if state == "running":
        phase = f"{now.get('phase') or 'starts'}"
        spent = f" {now.get('spent_s', 0):.0f}/{now.get('budget_s', 0):.0f} s" if now.get("budget_s") else ""
        return ink(clean(phase, 30) + spent, ACCENT)
    if state == "done":
        said = str(now.get("says", ""))
        text, style = _ANSWERS.get(said, (clean(said, 44), ""))
        return ink(text, style) + ink(f" {clean(now.get('mechanism') or '', 40)}".rstrip())
    return ink(clean(now.get("why") or now.get("says") or "", 80), WARN if now.get("why") else DIM)


SCREEN = Fleet
