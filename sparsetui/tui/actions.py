"""The one registry of actions: keys, footer, help and command palette are all read from it.

A screen offers an action by having a method ``do_<id>``; it may refuse one for now by returning the reason from
``why_not(id)``: the key is then dimmed, and pressing it tells the reason.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Action:
    """One thing a user can do. ``keys`` are Textual key names, the first one is shown."""

    id: str
    keys: tuple[str, ...]
    label: str
    tells: str
    group: str = "here"
    footer: bool = True
    changes: bool = False  # writes to the session or runs code: refused with --readonly


ACTIONS: tuple[Action, ...] = (
    # the investigation
    Action("enter", ("enter",), "next", "do the next best step, or open what the cursor is on", "investigate"),
    Action("next", ("n",), "next step", "do the next best step, wherever the cursor is", "investigate", False),
    Action("run", ("r",), "run", "run the passes of this stage live", "investigate", changes=True),
    Action("run_all", ("R", "shift+r"), "run all", "run the whole investigation", "investigate", changes=True),
    Action("intervene", ("i",), "intervene", "remove the suspected mechanism and measure", "investigate", changes=True),
    Action("cancel", ("x",), "cancel", "cancel the run; what was measured is kept", "investigate"),
    Action("pause", ("p",), "pause", "freeze the table; clock and live panel go on", "investigate"),
    # other screens of a session
    Action("evidence", ("v",), "evidence", "findings, their evidence, figures and artifacts", "screens"),
    Action("matrix", ("m",), "matrix", "the trade-off matrix", "screens"),
    Action("lens", ("b",), "lens", "the bandwidth lens", "screens"),
    Action("fleet", ("F", "shift+f"), "hosts", "a row a host: is it the host or the release?", "screens"),
    Action("paths", ("t",), "time", "where time goes by path, as samplers and traces saw it", "screens"),
    Action("sections", ("u",), "more", "what other tools left: replay, rollback, imports", "screens"),
    Action("owners", ("o",), "owners", "owners, closure artifacts, gates", "screens"),
    Action("close_case", ("c",), "close", "close the investigation, if its gates hold", "screens", changes=True),
    Action("memo", ("M", "shift+m"), "memo", "read the closure memo", "screens"),
    Action("export", ("e",), "export", "write the memo to a file", "screens"),
    Action("commands", ("C", "shift+c"), "commands", "every process that was started, to copy", "screens"),
    Action("charts", ("V", "shift+v"), "charts", "distributions, budget, roofline, threads, in full size", "screens"),
    Action("attach", ("a",), "attach", "watch a running process from outside", "app", changes=True),
    Action("compare", ("c",), "compare", "the two marked sessions side by side", "app"),
    Action("playbooks", ("P", "shift+p"), "playbooks", "read the playbooks, and choose the one to follow", "app"),
    Action("open_file", ("f",), "open file", "open a workload file", "app"),
    # what a list can do
    Action("assign", ("a",), "assign", "name the owner of this role", "closure", changes=True),
    Action("waive", ("w",), "waive", "waive this gate, with a reason and a name", "closure", changes=True),
    Action("sign", ("d",), "sign off", "sign off for this role", "closure", changes=True),
    Action("keep", ("w",), "keep", "add what was seen to a session", "closure", changes=True),
    Action("mark", ("space",), "mark", "mark the row", "list", False),
    Action("filter", ("slash",), "filter", "show only the rows that hold some text", "list"),
    Action("sort", ("S", "shift+s"), "sort", "sort by the next column", "list", False),
    Action("yank", ("y",), "yank", "copy the row, or what is marked, or the text", "list"),
    # moving
    Action("up", ("up", "k"), "up", "one row up", "move", False),
    Action("down", ("down", "j"), "down", "one row down", "move", False),
    Action("left", ("left", "h"), "left", "the panel before", "move", False),
    Action("right", ("right", "l"), "right", "the panel after", "move", False),
    Action("top", ("g", "home"), "first", "the first row", "move", False),
    Action("bottom", ("G", "shift+g", "end"), "last", "the last row", "move", False),
    Action("page_up", ("pageup", "ctrl+b"), "page up", "a page up", "move", False),
    Action("page_down", ("pagedown", "ctrl+f"), "page down", "a page down", "move", False),
    Action("panel", ("tab",), "panel", "the next panel", "move", False),
    Action("panel_back", ("shift+tab",), "panel back", "the panel before", "move", False),
    Action("stage", ("1", "2", "3", "4", "5", "6", "7"), "stage", "jump to a stage of the flow", "move", False),
    # the app
    Action("home", ("H", "shift+h"), "sessions", "back to sessions and drills", "app", False),
    Action("reload", ("ctrl+r",), "reload", "read the session or the list again", "app", False),
    Action("shot", ("s",), "screenshot", "save the screen as SVG and as text", "app", False),
    Action("palette", ("colon",), "command", "every action by its name", "app"),
    Action("help", ("question_mark", "f1"), "help", "this list", "app"),
    Action("back", ("escape",), "back", "back, or cancel the run", "app"),
    Action("suspend", ("ctrl+z",), "suspend", "to the shell; fg comes back", "app", False),
    Action("quit", ("q",), "quit", "quit; asks only when a run is live", "app"),
    Action("quit_now", ("ctrl+c",), "quit now", "save and quit at once", "app", False),
)  # fmt: skip

BY_ID: dict[str, Action] = {a.id: a for a in ACTIONS}

GROUPS: dict[str, str] = {
    "investigate": "investigate",
    "screens": "screens of a session",
    "closure": "owners & closure",
    "list": "lists and tables",
    "move": "moving",
    "app": "the app",
}

_SHOWN = {
    "enter": "Enter", "escape": "Esc", "slash": "/", "colon": ":", "question_mark": "?", "space": "Space",
    "tab": "Tab", "shift+tab": "S-Tab", "up": "Up", "down": "Down", "left": "Left", "right": "Right", "home": "Home",
    "end": "End", "pageup": "PgUp", "pagedown": "PgDn", "ctrl+c": "^C", "ctrl+z": "^Z", "ctrl+r": "^R",
    "ctrl+b": "^B", "ctrl+f": "^F", "f1": "F1",
}  # fmt: skip


def key_name(key: str) -> str:
    """A key as people write it: ``question_mark`` is ``?``, ``ctrl+c`` is ``^C``."""
    return _SHOWN.get(key, key)


def keys_of(action: Action) -> str:
    """All keys of an action for the help; ``R`` and ``shift+r`` are one key to a person."""
    if action.id == "stage":
        return "1-7"
    return " ".join(key_name(k) for k in action.keys if not k.startswith("shift+") or k == "shift+tab")
