"""Owners and closure: who owns what, what each attached and signed, and the gates that keep it from closing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.widget import Widget

from sparsetui.evidence.records import Gate
from sparsetui.evidence.text import clean
from sparsetui.flow import CLOSURE_ARTIFACTS, OWNERS
from sparsetui.session.closure import TITLES, gates
from sparsetui.session.state import SessionState
from sparsetui.tui.actions import Action
from sparsetui.tui.desk import Desk
from sparsetui.tui.look import BAD, DIM, HEAD, MARK, MARK_STYLE, OK, WARN, ink
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.screens.dialogs import Form
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table

if TYPE_CHECKING:
    from sparsetui.tui.engine.far import FarRunner


# gates that a run of ours can settle: what to call it, and what the runner does
MEASURES: dict[str, tuple[str, Callable[[FarRunner], object]]] = {
    "matrix": ("measure matrix", lambda r: r.run_matrix()),
    "replay": ("replay the log", lambda r: r.run_replay()),
    "rollback": ("rehearse", lambda r: r.run_rehearsal()),
}


def why_not_close(desk: Desk) -> str | None:
    """Why the investigation cannot be closed now, or ``None``."""
    state = desk.state
    if desk.readonly:
        return "opened read-only"
    if desk.busy:
        return f"{desk.busy} is running"
    if state.closed is not None:
        return f"it was closed by {state.closed or 'somebody'}"
    if state.result is None:
        return "there is no verdict yet"
    failing = [g for g in gates(state) if g.state not in ("passed", "waived")]
    if failing:
        return f"{len(failing)} gates do not hold: " + ", ".join(g.gate for g in failing)
    return None


class OwnersAndClosure(CaseSheet):
    TITLE_TEXT = "owners & closure"
    RUNS_ON = True
    FOOTER = ("enter", "assign", "sign", "waive", "run", "close_case", "memo", "export", "back")

    def body(self) -> Iterable[Widget]:
        yield Table(
            [
                Column("role", 30, 31),
                Column("who", 8, 20),
                Column("closure artifact", 14, 34, drop=2),
                Column("attached", 8, 12),
                Column("signed", 6, 30, drop=1),
            ],
            id="roles",
            classes="frame",
            title="owners",
        )
        yield Table(
            [Column("gate", 32, 40), Column("state", 9, 10), Column("why", 16, 200), Column("by", 4, 18, drop=1)],
            id="gates",
            classes="frame half",
            title="gates",
        )
        yield Panel(id="verdict")

    def on_mount(self) -> None:
        self.query_one("#verdict").can_focus = False
        super().on_mount()

    def show(self) -> None:
        state = self.desk.state
        self.query_one("#roles", Table).set_rows([self._role(state, role) for role in OWNERS.values()])
        self.query_one("#gates", Table).set_rows([_gate(g) for g in gates(state)])
        why = why_not_close(self.desk)
        line = ink()
        if state.closed is not None:
            line.append(f"✓ closed by {clean(state.closed)}", style=OK)
        elif why is None:
            line.append("✓ every gate holds: c closes it", style=OK)
        else:
            line.append("✗ NOT CLOSED ", style=BAD)
            line.append(clean(why))
        self.query_one("#verdict", Panel).set_lines([self._here(state), line])

    def _here(self, state: SessionState) -> Text:
        """What the row under the cursor is about, uncut where the table had to cut it."""
        gate, role = self._gate_here(), self._on("roles")
        if gate is not None:
            return ink(f"{clean(TITLES.get(gate.gate, gate.gate))}: ", DIM) + ink(clean(gate.why or gate.state, 300))
        if role is not None:
            return ink(f"{clean(role)}: ", DIM) + ink(f"has to attach {CLOSURE_ARTIFACTS.get(role, 'its artifact')}")
        return ink()

    def on_table_picked(self) -> None:
        self.show()

    def on_descendant_focus(self) -> None:
        super().on_descendant_focus()
        if self.is_attached and self.is_current:
            self.show()

    @staticmethod
    def _role(state: SessionState, role: str) -> Row:
        who = state.owners.get(role, "")
        attached = [str(a.get("evidence", "")) for a in state.artifacts if a.get("role") == role]
        signed = [str(s.get("who", "")) for s in state.signoffs if s.get("role") == role]
        on_call = state.result is not None and state.result.verdict.owner == role
        return Row(
            role,
            (
                ink("▲ " if on_call else "  ", style=BAD) + ink(clean(role, 40), style=HEAD if on_call else ""),
                clean(who, 40) if who else ink("– nobody", style=WARN),
                clean(CLOSURE_ARTIFACTS.get(role, "")),
                clean(", ".join(attached), 40) if attached else ink("· none", style=DIM),
                ink("✓ " + clean(", ".join(signed), 40), style=OK) if signed else ink("·", style=DIM),
            ),
        )

    # what can be done

    def _on(self, id: str) -> str | None:
        """The key under the cursor, if table ``id`` has the focus."""
        table = self.query_one(f"#{id}", Table)
        return table.key if table.has_focus else None

    def why_not(self, id: str) -> str | None:
        if id == "close_case":
            return why_not_close(self.desk)
        if id in ("assign", "sign", "waive", "enter"):
            if self.desk.readonly:
                return "opened read-only"
            if self.desk.busy:
                return f"{self.desk.busy} is running; x cancels it"
            if not self.desk.state.events:
                return "there is no session yet; run a stage first"
            if id in ("assign", "sign") and self._on("roles") is None:
                return "the cursor is not on a role"
            if id == "waive":
                gate = self._gate_here()
                if gate is None:
                    return "the cursor is not on a gate"
                return "this gate holds" if gate.state in ("passed", "waived") else None
        if id == "run":
            return self.desk.why_not_run()
        return super().why_not(id)

    def _gate_here(self) -> Gate | None:
        key = self._on("gates")
        return next((g for g in gates(self.desk.state) if g.gate == key), None)

    def label(self, action: Action) -> str:
        if action.id == "run":
            return "run gates"
        if action.id == "enter":
            return self._next_for_row()[1]
        return super().label(action)

    def _next_for_row(self) -> tuple[str, str]:
        role = self._on("roles")
        if role is not None:
            state = self.desk.state
            if not state.owners.get(role):
                return "assign", "name owner"
            if not any(a.get("role") == role for a in state.artifacts):
                return "attach", "attach"
            return "sign", "sign off"
        gate = self._gate_here()
        if gate is not None and gate.gate in MEASURES and gate.state in ("not run", "failed"):
            return "measure", MEASURES[gate.gate][0]
        return "waive", "waive"

    def do_enter(self) -> None:
        what = self._next_for_row()[0]
        if what == "attach":
            self._attach_artifact()
        elif what == "measure":
            self._measure()
        else:
            self.action_act(what)

    def _measure(self) -> None:
        """Run what the gate under the cursor asks for."""
        gate, why = self._gate_here(), self.desk.why_not_run()
        if why is not None:
            self.note(f"{self._next_for_row()[1]}: {why}", WARN)
        elif gate is not None:
            self.app.start(*MEASURES[gate.gate])

    def do_run(self) -> None:
        self.app.start("release", lambda r: r.run_stage("release"))

    def do_assign(self) -> None:
        role = self._on("roles")
        assert role is not None
        who = self.desk.state.owners.get(role, "")

        def done(values: dict[str, str] | None) -> None:
            if values:
                self._record(f"owner of {role}", "owner", {"role": role, "who": values["who"], "source": "typed"})

        self.app.push_screen(Form(f"who is the {role}?", [("who", "name or team", who)], need("who")), done)

    def _proof(self, role: str) -> str | None:
        """The newest evidence of the kind that proves the role's closure artifact."""
        from sparsetui.release.closing import PROOFS

        held = [e for e in self.desk.state.evidence if e.sha256]
        return next((e.id for probe in PROOFS.get(role, ()) for e in reversed(held) if e.probe == probe), None)

    def _attach_artifact(self) -> None:
        role = self._on("roles")
        evidence = self.desk.state.evidence
        if role is None or not evidence:
            self.note("there is no evidence to attach yet", WARN)
            return
        known = {e.id for e in evidence}

        def check(values: dict[str, str]) -> str | None:
            if values["evidence"] not in known:
                return f"no evidence {clean(values['evidence'], 20)}; there are {', '.join(sorted(known)[:8])}"
            return None

        def done(values: dict[str, str] | None) -> None:
            if values:
                self._record(f"artifact of {role}", "artifact", {"role": role, **values})

        verdict = self.desk.state.result.verdict if self.desk.state.result else None
        first = self._proof(role) or (verdict.intervention if verdict else None) or evidence[-1].id
        wanted = CLOSURE_ARTIFACTS.get(role, "its closure artifact")
        fields = [("evidence", f"evidence that holds the {wanted}", first), ("why", "why this one (may be empty)", "")]
        self.app.push_screen(Form(f"attach for the {role}", fields, check), done)

    def do_sign(self) -> None:
        role = self._on("roles")
        assert role is not None

        def done(values: dict[str, str] | None) -> None:
            if values:
                self._record(f"sign-off of {role}", "signoff", {"role": role, **values})

        fields = [("who", "your name", self.desk.state.owners.get(role, "")), ("note", "a note (may be empty)", "")]
        self.app.push_screen(Form(f"sign off as {role}", fields, need("who")), done)

    def do_waive(self) -> None:
        gate = self._gate_here()
        assert gate is not None

        def done(values: dict[str, str] | None) -> None:
            if values:
                self._record(f"waiver of {gate.gate}", "waiver", {"gate": gate.gate, **values})

        fields = [("why", "reason (it stands in the memo)", ""), ("by", "your name (it stands in the memo)", "")]
        self.app.push_screen(Form(f"waive gate {clean(gate.gate, 30)}", fields, need("why", "by")), done)

    def do_close_case(self) -> None:
        self.app.close_case()

    def _record(self, job: str, kind: str, body: dict[str, Any]) -> None:
        self.app.record(job, kind, body)

    def _step_panel(self, by: int) -> None:
        super()._step_panel(by)
        self.call_after_refresh(self.draw_keys)


def need(*names: str) -> Any:
    def check(values: dict[str, str]) -> str | None:
        empty = [n for n in names if not values[n]]
        return f"{' and '.join(empty)} cannot be empty" if empty else None

    return check


def _gate(g: Gate) -> Row:
    style = MARK_STYLE.get(g.state, DIM)
    return Row(
        g.gate,
        (
            clean(TITLES.get(g.gate, g.gate), 60),
            ink(f"{MARK.get(g.state, '·')} {g.state}", style=style),
            clean(g.why, 300),
            clean(g.by, 40),
        ),
    )


SCREEN = OwnersAndClosure
