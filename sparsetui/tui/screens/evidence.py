"""The evidence browser: finding → op → nested ops and stacks → the artifact as it was stored. Enter goes deeper, Esc back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text
from textual.containers import Container
from textual.widget import Widget

from sparsetui.evidence.records import Evidence, Finding
from sparsetui.evidence.text import clean
from sparsetui.report.numbers import figure
from sparsetui.tui import panels
from sparsetui.tui.actions import Action
from sparsetui.tui.drilling import Drill, Item, line_of
from sparsetui.tui.guide import closes
from sparsetui.tui.look import BAD, DIM, HEAD, WARN, ink
from sparsetui.tui.panels import labelled
from sparsetui.tui.screens.base import CaseSheet
from sparsetui.tui.widgets.bars import Panel
from sparsetui.tui.widgets.table import Column, Row, Table

MOST_LINES = 4000  # of an artifact on the screen; yank takes the whole of it
Pick = Finding | Evidence | Item


class EvidenceBrowser(CaseSheet):
    TITLE_TEXT = "evidence"
    FOOTER = ("enter", "filter", "yank", "mark", "sort", "back")

    def __init__(self) -> None:
        super().__init__()
        self.trail: list[Pick] = []  # what was entered, outermost first; empty for all findings and all evidence
        self.artifact: tuple[str, tuple[str, ...]] | None = None  # the evidence whose artifact is open, and where in it
        self._aimed: str | None = None
        self._drill: Drill | None = None
        self._level: dict[str, Pick] = {}

    def aim(self, **arguments: Any) -> None:
        """Open at a ``finding``, or at one piece of ``evidence``."""
        self.artifact, self._aimed = None, arguments.get("evidence")
        self.trail = [f for f in self.desk.state.findings if f.mechanism == arguments.get("finding")]

    def body(self) -> Iterable[Widget]:
        with Container(classes="columns"):
            yield Table(
                [Column("", 4, 34), Column("kind", 6, 10, drop=2), Column("what it showed", 12, 120, drop=1)],
                id="list",
                classes="frame half",
                title="findings and evidence",
                empty="no evidence yet: each pass leaves one line here",
            )
            yield Panel(id="detail", classes="frame half", title="figures")

    @property
    def drill(self) -> Drill:
        """Over the state as it is now; the artifacts that were read are kept as long as it does not change."""
        if self._drill is None or self._drill.state is not self.desk.state:
            self._drill = Drill(self.desk.state, self._load)
        return self._drill

    def level(self) -> list[Pick]:
        """What is listed: below the last thing that was entered."""
        state = self.desk.state
        if not self.trail:
            by_name = {f.mechanism: f for f in state.findings}
            return [*(by_name[row.key] for row in panels.finding_rows(state.findings)), *state.evidence]
        last = self.trail[-1]
        if isinstance(last, Finding):
            mine = {*last.evidence, last.intervention}
            return [*self.drill.of_finding(last), *(e for e in state.evidence if e.id in mine)]
        if isinstance(last, Evidence):
            return [*self.drill.of_evidence(last), self.drill.artifact(last)]
        return list(last.below)

    def show(self) -> None:
        table = self.query_one("#list", Table)
        self._level = {_key(p): p for p in self.level()}
        table.empty = "nothing is known below this" if self.trail else "no evidence yet: each pass leaves one line here"
        table.set_title(" > ".join(clean(_name(p), 40) for p in self.trail) or "findings and evidence")
        table.set_rows([_row(p) for p in self._level.values()])
        if self._aimed is not None:
            table.go_to(f"E:{self._aimed}")
            self._aimed = None
        self._detail()

    def on_table_picked(self) -> None:
        self.artifact = None
        self._detail()

    def _pick(self) -> Pick | None:
        return self._level.get(self.query_one("#list", Table).key or "")

    def _detail(self) -> None:
        panel = self.query_one("#detail", Panel)
        width = max(20, panel.content_size.width)
        pick = self._pick()
        if self.artifact is not None:
            panel.set_title(f"artifact of {self.artifact[0]}", "Esc closes it")
            panel.set_lines(self._artifact_lines(self.artifact[0]))
        elif isinstance(pick, Finding):
            panel.set_title("finding", "Enter: its ops and its evidence")
            panel.set_lines(finding_lines(pick, width))
        elif isinstance(pick, Evidence):
            panel.set_title("figures", "Enter: what it lists" if pick.sha256 else "")
            panel.set_lines(evidence_lines(pick, width))
        elif pick is not None:
            panel.set_title(pick.kind, "Enter: what is below it" if pick.below else "Enter: its place in the artifact")
            panel.set_lines(item_lines(pick, width))
        else:
            panel.set_title("figures", "")
            panel.set_lines([])

    # artifacts

    def _evidence(self, id: str) -> Evidence | None:
        return next((e for e in self.desk.state.evidence if e.id == id), None)

    def _raw(self, evidence: Evidence) -> bytes:
        assert evidence.sha256 is not None
        raw: bytes = self.desk.store.open(self.desk.ref or self.desk.state.id).artifact(evidence.sha256)
        return raw

    def _load(self, evidence: Evidence) -> Any:
        import msgspec

        return msgspec.json.decode(self._raw(evidence))

    def _artifact_text(self, id: str) -> str:
        import msgspec

        evidence = self._evidence(id)
        if evidence is None or evidence.sha256 is None:
            return "this evidence keeps no artifact beside its figures"
        return msgspec.json.format(self._raw(evidence), indent=2).decode("utf-8", "replace")

    def _artifact_lines(self, id: str) -> list[Text]:
        try:
            text = self._artifact_text(id)
        except Exception as error:  # damaged or missing: said in its place, the browser goes on
            return [ink(clean(error, 300), style=WARN)]
        lines = text.splitlines()
        shown = [ink(clean(x, 400).replace("\\t", "  ")) for x in lines[:MOST_LINES]]
        at = line_of(lines[:MOST_LINES], self.artifact[1]) if self.artifact is not None else 0
        if at:
            shown[at].stylize("reverse")
        if len(lines) > MOST_LINES:
            shown.append(ink(f"… {len(lines) - MOST_LINES} more lines; y copies all of it", style=DIM))
        return shown

    def _open_artifact(self, id: str, needle: tuple[str, ...]) -> None:
        evidence = self._evidence(id)
        if evidence is None or evidence.sha256 is None:
            self.note(f"{id} keeps no artifact beside its figures", WARN)
            return
        self.artifact = (id, needle)
        panel = self.query_one("#detail", Panel)
        panel.top = 0
        self._detail()
        at = next((i for i, line in enumerate(panel.lines) if any("reverse" in str(s.style) for s in line.spans)), 0)
        panel.scroll_lines(max(0, at - 2))
        self.go_into(panel)

    # going deeper and back

    def label(self, action: Action) -> str:
        if action.id == "enter":
            pick = self._pick()
            lists = isinstance(pick, Evidence) and bool(self.drill.of_evidence(pick))
            leaf = (isinstance(pick, Evidence) and not lists) or (isinstance(pick, Item) and not pick.below)
            return "artifact" if leaf else "deeper"
        return super().label(action)

    def why_not(self, id: str) -> str | None:
        if id == "enter" and self._pick() is None:
            return "nothing is listed here yet" if not self.trail else "nothing is known below this"
        if id == "enter" and self.artifact is not None:
            return "this is the artifact; Esc closes it"
        return super().why_not(id)

    def do_enter(self) -> None:
        pick = self._pick()
        if pick is None:
            return
        if isinstance(pick, Evidence) and not self.drill.of_evidence(pick):
            self._open_artifact(pick.id, ())
        elif isinstance(pick, Item) and not pick.below:
            self._open_artifact(pick.of, pick.needle)
        else:
            self.trail.append(pick)
            self._enter_level()

    def _enter_level(self) -> None:
        """Another list: from its top, and without the filter and the marks of the one before."""
        table = self.query_one("#list", Table)
        table.needle, table.cursor, table.marked = "", 0, set()
        self.redraw()

    def go_back(self) -> None:
        table = self.query_one("#list", Table)
        if self.artifact is not None:
            self.artifact = None
            self.go_into(table)
            self._detail()
        elif self.trail:
            was = self.trail.pop()
            self._enter_level()
            table.go_to(_key(was))
            self._detail()
        else:
            super().go_back()

    def yank_text(self) -> str:
        if self.artifact is not None:
            return self._artifact_text(self.artifact[0])
        table, pick = self.query_one("#list", Table), self._pick()
        if table.marked:
            return table.text()
        return "\n".join(x.plain for x in lines_of(pick, 100)) if pick is not None else ""


def _key(pick: Pick) -> str:
    return (
        f"F:{pick.mechanism}"
        if isinstance(pick, Finding)
        else f"E:{pick.id}"
        if isinstance(pick, Evidence)
        else pick.key
    )


def _name(pick: Pick) -> str:
    return pick.mechanism if isinstance(pick, Finding) else pick.id if isinstance(pick, Evidence) else pick.name


def _row(pick: Pick) -> Row:
    if isinstance(pick, Finding):
        first = panels.finding_rows([pick])[0]
        return Row(_key(pick), (first.cells[0], "finding", first.cells[3]))
    if isinstance(pick, Evidence):
        variant = f"{pick.variant}: " if pick.variant else ""
        name = clean(f"{pick.id} {pick.probe}", 40)
        return Row(_key(pick), (name, clean(pick.stage, 12), clean(variant + pick.summary, 300)))
    return Row(pick.key, (clean(pick.name, 80), pick.kind, clean(pick.what, 200)))


def lines_of(pick: Pick, width: int) -> list[Text]:
    if isinstance(pick, Finding):
        return finding_lines(pick, width)
    return evidence_lines(pick, width) if isinstance(pick, Evidence) else item_lines(pick, width)


def item_lines(item: Item, width: int) -> list[Text]:
    """All that is known of an op, a nested op, a stack or a frame of it."""
    lines = [ink(clean(item.name, 120), style=HEAD) + ink(f"  {item.kind}", style=DIM)]
    lines += labelled("is", item.what, width)
    for label, text in item.details:
        lines += labelled(label, text, width)
    return [*lines, *labelled("told by", item.of, width)]


def finding_lines(f: Finding, width: int) -> list[Text]:
    """All of a finding: what it says, what it rests on, what to do, and how to undo that."""
    state = "material" if f.material else "ruled out" if f.settled else "not settled"
    lines = [
        ink(clean(f.mechanism, 60), style=BAD if f.material else HEAD) + ink(f"  {f.confidence}, {state}", style=DIM)
    ]
    lines += labelled("summary", f.summary, width)
    lines += labelled("question", f.question, width)
    lines += labelled("why", f.reason, width)
    if share := closes(f):
        lines += labelled("share", share, width, HEAD)
    for place in f.where[:8]:
        lines += labelled("where", f"{place.module or '–'} {place.op}".strip(), width)
    lines += labelled("owner", f.owner, width)
    lines += labelled("evidence", ", ".join(f.evidence), width)
    lines += labelled("proved by", f.intervention, width)
    if f.material:  # a fix is offered only for what has been classified
        lines += labelled("fix", f.fix, width)
        lines += labelled("touches", f.boundary, width)
        lines += labelled("way back", f.rollback, width)
        lines += labelled("closes when", f.closes, width)
    return lines


def evidence_lines(e: Evidence, width: int) -> list[Text]:
    """An evidence and its figures."""
    lines = [
        ink(f"{clean(e.id, 10)} {clean(e.probe, 40)}", style=HEAD)
        + ink(f"  {clean(e.stage, 12)}, {e.quality}", style=DIM)
    ]
    lines += labelled("summary", e.summary, width)
    lines += labelled("variant", e.variant, width)
    lines += labelled("took", None if e.seconds is None else f"{e.seconds:.2f} s", width)
    for name, number in e.figures.items():
        share = number.unit == "share"
        text = figure(number, percent=share) if share else figure(number)
        lines += labelled("figure", f"{clean(name, 40)}: {text}", width, WARN if number.value is None else "")
    for name, value in e.source.items():
        lines += labelled("from", f"{name}: {value}", width)
    lines += labelled("sha256", e.sha256 or "no artifact", width, DIM)
    return lines


SCREEN = EvidenceBrowser
