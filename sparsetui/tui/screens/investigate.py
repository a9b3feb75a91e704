"""Investigate: the seven stages, and at each the question, what is run, what was found, and the next best step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Container
from textual.widget import Widget

from sparsetui.evidence.text import clean
from sparsetui.flow import BY_ID as STAGE
from sparsetui.flow import STAGES
from sparsetui.tui import panels
from sparsetui.tui.actions import Action
from sparsetui.tui.guide import Step, next_step, open_question, suspect
from sparsetui.tui.live_panel import live_lines
from sparsetui.tui.look import DIM, KEY, WARN, ink
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.screens.dialogs import Ask
from sparsetui.tui.widgets.bars import Flow, Guide, Line, Panel
from sparsetui.tui.widgets.block import Block
from sparsetui.tui.widgets.table import Table

if TYPE_CHECKING:
    from sparsetui.tui.engine.far import FarRunner

PANES = ("outcome", "ops", "findings", "live", "evidence")
_TIMED = ("clock", "intervention", "matrix", "replay", "rehearsal")  # phases that feed the latency strips
# the pane that answers a stage's question, where there is room for only one
_PANE_OF = {"ingress": "evidence", "lowering": "ops", "kernel": "ops", "scheduling": "ops", "execution": "live"}


class Investigate(CaseSheet):
    FOOTER = ("enter", "run", "run_all", "intervene", "cancel", "owners", "export", "charts", "matrix", "lens", "paths", "sections",
              "close_case", "pause", "evidence", "filter", "yank", "commands")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.stage = "ingress"
        self.pane = "findings"
        self.paused = False
        self._arrived = False  # at the verdict: it has been shown once

    def body(self) -> Iterable[Widget]:
        with Container(id="case"):
            yield Flow(id="flow", classes="frame", title="flow")
            yield Guide(id="guide", classes="frame")
            yield Line(id="tabs")
            yield Panel(id="outcome", classes="frame pane", title="verdict")
            yield Table(panels.OP_COLUMNS, id="ops", classes="frame pane", title="ops", empty=_NO_OPS)
            yield Table(panels.FINDING_COLUMNS, id="findings", classes="frame pane", title="findings", empty="none yet")
            yield Panel(id="live", classes="frame pane", title="live")
            yield Table(
                panels.EVIDENCE_COLUMNS, id="evidence", classes="frame pane", title="evidence", empty=_NO_EVIDENCE
            )

    def on_mount(self) -> None:
        self.query_one("#guide").can_focus = False
        self.query_one("#evidence", Table).tail = True
        self._go_where_the_work_is()
        super().on_mount()

    def first_focus(self) -> Widget | None:
        return self.query_one("#flow")

    # drawing

    @property
    def step(self) -> Step:
        desk = self.desk
        if desk.followed:
            return Step("wait", "", f"follow {desk.followed}", "it writes this session; nothing is changed from here")
        return next_step(
            desk.state,
            desk.live,
            tried=desk.tried,
            attempted=desk.attempted,
            exported=desk.exported is not None,
            extended=desk.extended,
        )

    def show(self) -> None:
        state, live = self.desk.state, self.desk.live
        flow = self.query_one("#flow", Flow)
        draw = panels.flow_rail(state, live, self.stage, flow.has_focus) if self.wide else None
        flow.set_lines(draw or [panels.flow_line(state, live, self.stage, flow.has_focus)])
        stage = STAGE[self.stage]
        guide = self.query_one("#guide", Guide)
        guide.set_title(stage.title)
        size = guide.content_size
        width, rows = max(20, size.width), max(4, size.height)
        guide.set_lines(panels.guide(state, stage, self.step_line(), width, rows=rows, asks=self._asks()))
        ops = self.query_one("#ops", Table)
        if not self.paused:
            wide = self.size.width >= 132
            ops.set_rows_of((state.ops, wide), lambda: panels.op_rows(state.ops, wide))
        ops.set_title("ops" + ("  paused, p goes on" if self.paused else ""))
        findings = self.query_one("#findings", Table)
        findings.empty = self._introduction() if not state.evidence else "none yet"
        how = (self.wide, open_question(state))
        findings.set_rows_of(
            (state.findings, findings.empty, how),
            lambda: panels.finding_rows(state.findings, self.wide, undecided=how[1]),
        )
        outcome = self.query_one("#outcome", Panel)
        outcome.set_lines(panels.outcome(state, max(20, outcome.content_size.width)) if outcome.display else [])
        self.draw_live()
        evidence = self.query_one("#evidence", Table)
        evidence.set_rows_of(state.evidence, lambda: panels.evidence_rows(state.evidence))
        if self.pane not in self.panes():
            self.pane = "findings"
        self._draw_tabs()

    def _asks(self) -> str:
        """What the chosen playbook asks at this stage, before its run has told what it found there."""
        steps = getattr(self.desk.playbook, "steps", ())
        return next((f"{s.ask} {', '.join(s.run)}" for s in steps if s.stage == self.stage), "")

    def draw_live(self) -> None:
        panel = self.query_one("#live", Panel)
        size = panel.content_size
        lines = live_lines(self.desk.state, self.desk.live, max(20, size.width), max(4, size.height), self.app.unicode)
        panel.set_lines(lines)

    def _introduction(self) -> str:
        """What this is about and how to begin, where no pass has been run yet."""
        desk = self.desk
        if desk.drill is None or desk.busy:
            return "none yet"
        return f"{desk.drill.story} R runs the whole investigation; Enter goes through it stage by stage."

    def _draw_tabs(self) -> None:
        state = self.desk.state
        shown = self.panes()
        labels = {
            "outcome": "verdict",
            "ops": "ops paused" if self.paused else "ops",
            "findings": f"findings {len(state.material)}",
            "live": "live",
            "evidence": f"evidence {len(state.evidence)}",
        }
        self.query_one("#tabs", Line).say(panels.tabs([(p, labels[p]) for p in shown], self.pane))
        for pane in PANES:
            self.query_one(f"#{pane}").set_class(pane == self.pane, "-on")

    def step_line(self) -> Text:
        step = self.step
        if step.do == "wait":
            return ink("next  ", style=DIM) + ink(step.label) + ink(f"; {step.why}", style=DIM)
        why_not = self.why_not("next")
        line = ink("next  ", style=DIM) + ink("Enter ", style=KEY) + ink(step.label, style="bold")
        if why_not:
            return line + ink(f"  not now: {clean(why_not)}", style=WARN)
        return line + ink(f"  {step.why}", style=DIM)

    def label(self, action: Action) -> str:
        if action.id == "enter":
            return "open" if self._opens() else "next"
        if action.id == "run":
            return f"run {STAGE[self.stage].short}"
        return super().label(action)

    def on_descendant_focus(self) -> None:
        if self.focused is not None and self.focused.id in PANES and self.focused.id != self.pane:
            self.show_pane(str(self.focused.id))
        super().on_descendant_focus()
        self._draw_flow()

    def on_descendant_blur(self) -> None:
        self._draw_flow()

    def _draw_flow(self) -> None:
        if self.is_attached and self.is_current:
            flow = self.query_one("#flow", Flow)
            state, live = self.desk.state, self.desk.live
            rail = panels.flow_rail(state, live, self.stage, flow.has_focus) if self.wide else None
            flow.set_lines(rail or [panels.flow_line(state, live, self.stage, flow.has_focus)])

    def show_pane(self, pane: str) -> None:
        self.pane = pane
        self._draw_tabs()
        self.call_after_refresh(self.redraw)

    def panes(self) -> tuple[str, ...]:
        """The panes that there are now: a verdict has one of its own where it does not fit beside the others."""
        return PANES if self.desk.verdict is not None and not self.wide else PANES[1:]

    def panels(self) -> list[Block]:
        return [self.query_one(f"#{id}", Block) for id in ("flow", *self.panes())]

    # what happens

    def _go_where_the_work_is(self) -> None:
        step, result = self.step, self.desk.verdict
        if step.do == "stage":
            self.stage = step.target
        elif result is not None:
            self.stage = result.verdict.stage if result.verdict.stage in STAGE else "release"
        self.pane = _PANE_OF.get(self.stage, "findings") if self.desk.state.events else "findings"
        if result is not None:
            self.pane = "outcome"
            self._arrived = step.do not in ("stage", "intervene")

    def heard(self) -> None:
        """A run goes on: follow it to its stage."""
        live = self.desk.live
        news = self._news() != self._drawn_of
        if news and live.running and self.focused is self.query_one("#flow"):  # nobody looks at something else
            self.stage = live.stage if live.stage in STAGE else self.stage
            self.pane = "live" if live.phase.startswith(_TIMED) else "evidence"
        super().heard()

    def ended(self) -> None:
        there = self.desk.verdict is not None and self.step.do not in ("stage", "intervene")
        if there and (not self._arrived or self.desk.last_job in ("verdict", "investigation")):
            self._go_where_the_work_is()
        elif self.focused is self.query_one("#flow"):
            self.pane = _PANE_OF.get(self.stage, "findings")
            if any(f.stage == self.stage and f.material for f in self.desk.state.findings):
                self.pane = "findings"
        self.redraw()
        self.call_after_refresh(self.redraw)

    def _opens(self) -> bool:
        return isinstance(self.focused, Table) and self.focused.key is not None

    def why_not(self, id: str) -> str | None:
        desk = self.desk
        if id in ("run", "run_all", "intervene"):
            why = desk.why_not_run()
            if why is None and id == "intervene" and not desk.state.evidence:
                return "no mechanism is suspected yet: a stage has to be run first"
            return why
        if id == "next" and self.step.do in ("stage", "intervene", "conclude", "more"):
            return desk.why_not_run()
        if id == "enter":
            return None if self._opens() else self.why_not("next")
        if id == "close_case":
            from sparsetui.tui.screens.owners import why_not_close

            return why_not_close(desk)
        return super().why_not(id)

    def do_enter(self) -> None:
        if not self._opens():
            self.do_next()
            return
        table = self.table
        assert table is not None
        assert table.key is not None
        if table.id == "ops":
            self._show_op(table.key)
        else:
            key = table.key.split("#")[0]
            self.app.open("evidence", **{"finding" if table.id == "findings" else "evidence": key})

    def do_next(self) -> None:
        step = self.step
        if step.do == "wait":
            self.note(self.desk.why_not_run() or "a run is going on; x cancels it")
        elif step.do == "stage":
            self.go_to(step.target)
            self.do_run()
        elif step.do == "intervene":
            self._intervene(step.target)
        elif step.do == "conclude":
            self.stage = "release"
            self.app.start("verdict", lambda r: r.conclude())
        elif step.do == "more":
            self.go_to(step.target)
            self.desk.extend()
            self.do_run()
        elif step.do == "memo":
            self.app.open("memo")
        elif step.do == "owners":
            self.app.open("owners")

    def go_to(self, stage: str) -> None:
        self.stage = stage
        self.redraw()

    def do_run(self) -> None:
        stage = self.stage
        title = STAGE[stage].title

        def work(runner: FarRunner) -> None:
            self.desk.attempted.add(stage)
            runner.run_stage(stage)

        self._start(title, work)

    def do_run_all(self) -> None:
        self._start("investigation", lambda r: r.run_all())

    def do_intervene(self) -> None:
        found = suspect(self.desk.state, self.desk.tried)
        if found is not None:
            self._intervene(found.mechanism)
        else:
            self._start("intervention", lambda r: r.intervene(None))

    def _intervene(self, mechanism: str) -> None:
        self.desk.tried.add(mechanism)
        self.stage = mechanism.split(".", 1)[0] if mechanism.split(".", 1)[0] in STAGE else self.stage
        self._start(f"intervention on {mechanism}", lambda r: r.intervene(mechanism))

    def _start(self, job: str, work: object) -> None:
        self.app.start(job, work)  # type: ignore[arg-type]
        if self.app.desk.busy:
            self.redraw()

    def do_pause(self) -> None:
        self.paused = not self.paused
        self.redraw()

    def do_stage(self, key: str) -> None:
        self.go_to(STAGES[int(key) - 1].id)

    def _move(self, where: str) -> None:
        if self.focused is not self.query_one("#flow"):
            super()._move(where)
            return
        at = [s.id for s in STAGES].index(self.stage)
        to = {"up": at - 1, "down": at + 1, "top": 0, "page_up": 0}.get(where, len(STAGES) - 1)
        self.go_to(STAGES[max(0, min(to, len(STAGES) - 1))].id)

    def do_playbooks(self) -> None:
        self.app.open("playbooks")

    def do_close_case(self) -> None:
        self.app.close_case()

    def _show_op(self, key: str) -> None:
        table = self.query_one("#ops", Table)
        ordered = sorted(self.desk.state.ops, key=lambda o: -(o.self_ms_per_step.value or 0.0))
        i = int(key.rsplit("|", 1)[1])
        if i < len(ordered):
            op = ordered[i]
            self.app.push_screen(Ask(op.op, panels.op_details(op), "back", "back"))
        self.go_into(table)

    def yank_text(self) -> str:
        if self.focused is not None and self.focused.id == "flow":
            lines = [line.plain for line in self.query_one("#guide", Block).lines]
            return "\n".join(lines)
        return super().yank_text()

    def go_back(self) -> None:
        if self.desk.busy:
            self.app.cancel_run()
        elif self.focused is not self.query_one("#flow"):
            self.go_into(self.query_one("#flow"))
        else:
            self.app.go_home()


_NO_OPS = "no op has been listed yet: lowering runs the census, kernel selection the profile"
_NO_EVIDENCE = "no evidence yet: each pass leaves one line here, with its figures and its artifact"

SCREEN = Investigate
