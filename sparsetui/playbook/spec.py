"""A playbook: typed, read from YAML with the safe loader, and every mistake told by file and line.

A playbook is data. Conditions are objects that name a measured fact, a comparison and a value; nothing in a file is
ever evaluated as code. Anchors and aliases are refused: a small file could grow without bound through them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from sparsetui.evidence.text import clean
from sparsetui.flow import OWNERS, STAGES

Question = Literal["regression", "missing-speedup", "energy", "quality", "memory", "tail", "live", "trace"]
Op = Literal[">", "<", ">=", "<=", "==", "in", "known", "unknown"]
Value = float | int | str | bool

QUESTIONS: tuple[str, ...] = ("regression", "missing-speedup", "energy", "quality", "memory", "tail", "live", "trace")
OPS: tuple[str, ...] = (">", "<", ">=", "<=", "==", "in", "known", "unknown")
KINDS: tuple[str, ...] = ("mechanism", "no_fault", "cannot_answer")
# what a step may ask the live runner to run: the passes of the stages, and the tools around them
PASSES: tuple[str, ...] = tuple(
    dict.fromkeys([*(p for s in STAGES for p in s.passes), "matrix", "replay", "rehearse", "attach", "import"])
)
MAX_BYTES = 1 << 20


class PlaybookError(Exception):
    """One mistake in a playbook: ``file:line: what is wrong; what is accepted``."""

    def __init__(self, file: str, line: int, what: str) -> None:
        super().__init__(f"{clean(file)}:{line}: {clean(what, 300)}" if line else f"{clean(file)}: {clean(what, 300)}")
        self.file = file
        self.line = line
        self.what = what


class FactRef(msgspec.Struct, frozen=True):
    """The value of another fact, to compare with: ``value: {fact: declared.speedup}``."""

    fact: str


class Condition(msgspec.Struct, frozen=True):
    """A comparison, or ``all``/``any``/``not`` of others; exactly one of the two."""

    line: int
    fact: str = ""
    op: Op | None = None
    value: Value | tuple[Value, ...] | FactRef | None = None
    combine: Literal["", "all", "any", "not"] = ""
    parts: tuple[Condition, ...] = ()


class End(msgspec.Struct, frozen=True):
    """Where a path ends: a finding with an owner. ``settle`` is the command that would settle a cannot_answer."""

    line: int
    kind: Literal["mechanism", "no_fault", "cannot_answer"]
    say: str
    owner: str
    mechanism: str = ""
    settle: str = ""


class Target(msgspec.Struct, frozen=True):
    """Where a branch leads: to another step, or to an end."""

    line: int
    go: str = ""
    end: End | None = None


class Branch(msgspec.Struct, frozen=True):
    line: int
    when: Condition
    target: Target
    because: str = ""


class Step(msgspec.Struct, frozen=True):
    """One step: what is asked, what is run and looked at, which measured facts decide, and who owns it."""

    line: int
    id: str
    stage: str
    ask: str
    owner: str
    otherwise: Target
    run: tuple[str, ...] = ()
    look: str = ""
    branches: tuple[Branch, ...] = ()
    unknown: Target | None = None


class Playbook(msgspec.Struct, frozen=True):
    file: str
    id: str
    title: str
    question: Question
    steps: tuple[Step, ...]
    symptoms: tuple[str, ...] = ()

    def step(self, id: str) -> Step | None:
        return next((s for s in self.steps if s.id == id), None)


def load(path: Path) -> Playbook:
    """The playbook in ``path``; raises :class:`PlaybookError` for a file that cannot be read or holds a mistake."""
    try:
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            # a pipe would be waited for, and a device has no end
            raise PlaybookError(str(path), 0, "is not a plain file; a playbook is a YAML text file")
        with path.open("rb") as f:
            raw = f.read(MAX_BYTES + 1)
    except OSError as e:
        raise PlaybookError(str(path), 0, f"cannot be read: {e.strerror or type(e).__name__}") from e
    if len(raw) > MAX_BYTES:
        raise PlaybookError(str(path), 0, f"is larger than the {MAX_BYTES} bytes that are accepted")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        line = raw[: e.start].count(b"\n") + 1
        raise PlaybookError(str(path), line, "is not UTF-8 text; a playbook is a YAML text file") from e
    return parse(text, str(path))


def parse(text: str, file: str = "<text>") -> Playbook:
    """The playbook in ``text``; ``file`` only names it in errors. Raises :class:`PlaybookError` at the first mistake.

    Ids, facts and mechanisms are not resolved here: see :func:`sparsetui.playbook.check.check`.
    """
    return _Reader(file).playbook(_compose(text, file))


def _compose(text: str, file: str) -> yaml.Node:
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise PlaybookError(
                    file, _line_at(event.start_mark), "anchors and aliases (& and *) are not accepted; write it out"
                )
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > 40:
                raise PlaybookError(file, _line_at(event.start_mark), "is nested deeper than the 40 levels accepted")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        hint = '; a comparison such as ">" needs its quotes' if "op:" in _line_of(text, mark) else ""
        raise PlaybookError(file, _line_at(mark), f"is not YAML: {e.problem or e.context}{hint}") from e
    except yaml.YAMLError as e:
        at = getattr(e, "position", None)
        line = text[:at].count("\n") + 1 if isinstance(at, int) else 0
        raise PlaybookError(file, line, f"is not YAML: {getattr(e, 'reason', 'it cannot be read')}") from e
    if node is None:
        raise PlaybookError(file, 1, "is empty; a playbook has the keys id, title, question, steps")
    return node


def _line_at(mark: Any) -> int:
    return int(mark.line) + 1 if mark is not None else 0


def _line_of(text: str, mark: Any) -> str:
    lines = text.splitlines()
    return lines[mark.line] if mark is not None and mark.line < len(lines) else ""


class _Reader:
    """Turns YAML nodes into structs; each node still knows its line."""

    def __init__(self, file: str) -> None:
        self.file = file

    def fail(self, node: yaml.Node, what: str) -> PlaybookError:
        return PlaybookError(self.file, node.start_mark.line + 1, what)

    def playbook(self, node: yaml.Node) -> Playbook:
        keys = self.mapping(node, "a playbook", ("id", "title", "question", "symptoms", "steps"))
        self.need(node, keys, "a playbook", ("id", "title", "question", "steps"))
        steps = tuple(self.step(n) for n in self.sequence(keys["steps"], "steps"))
        if not steps:
            raise self.fail(keys["steps"], "steps is empty; a playbook has at least one step")
        return Playbook(
            file=self.file,
            id=self.text(keys["id"], "id"),
            title=self.text(keys["title"], "title"),
            question=self.one_of(keys["question"], "question", QUESTIONS),
            symptoms=self.texts(keys.get("symptoms"), "symptoms"),
            steps=steps,
        )

    def step(self, node: yaml.Node) -> Step:
        accepted = ("id", "stage", "ask", "run", "look", "owner", "branches", "unknown", "otherwise")
        keys = self.mapping(node, "a step", accepted)
        self.need(node, keys, "a step", ("id", "stage", "ask", "owner", "otherwise"))
        branches = self.sequence(keys["branches"], "branches") if "branches" in keys else []
        return Step(
            line=node.start_mark.line + 1,
            id=self.text(keys["id"], "id"),
            stage=self.one_of(keys["stage"], "stage", [s.id for s in STAGES]),
            ask=self.text(keys["ask"], "ask"),
            owner=self.owner(keys["owner"]),
            run=tuple(self.one_of(n, "run", PASSES) for n in self.sequence(keys["run"], "run"))
            if "run" in keys
            else (),
            look=self.text(keys["look"], "look") if "look" in keys else "",
            branches=tuple(self.branch(n) for n in branches),
            unknown=self.target(keys["unknown"], "unknown") if "unknown" in keys else None,
            otherwise=self.target(keys["otherwise"], "otherwise"),
        )

    def branch(self, node: yaml.Node) -> Branch:
        keys = self.mapping(node, "a branch", ("when", "because", "go", "end"))
        self.need(node, keys, "a branch", ("when",))
        return Branch(
            line=node.start_mark.line + 1,
            when=self.condition(keys["when"]),
            target=self.leads(node, keys, "a branch"),
            because=self.text(keys["because"], "because") if "because" in keys else "",
        )

    def target(self, node: yaml.Node, name: str) -> Target:
        return self.leads(node, self.mapping(node, name, ("go", "end")), name)

    def leads(self, node: yaml.Node, keys: dict[str, yaml.Node], name: str) -> Target:
        if ("go" in keys) == ("end" in keys):
            raise self.fail(node, f"{name} needs either go (a step's id) or end (a finding)")
        line = node.start_mark.line + 1
        if "go" in keys:
            return Target(line=keys["go"].start_mark.line + 1, go=self.text(keys["go"], "go"))
        return Target(line=line, end=self.end(keys["end"]))

    def end(self, node: yaml.Node) -> End:
        keys = self.mapping(node, "end", ("kind", "mechanism", "say", "owner", "settle"))
        self.need(node, keys, "end", ("kind", "say", "owner"))
        kind: Any = self.one_of(keys["kind"], "kind", KINDS)
        self.need(
            node,
            keys,
            f"an end of kind {kind}",
            {"mechanism": ("mechanism",), "cannot_answer": ("settle",)}.get(kind, ()),
        )
        if kind != "mechanism" and "mechanism" in keys:
            raise self.fail(keys["mechanism"], f"an end of kind {kind} names no mechanism")
        return End(
            line=node.start_mark.line + 1,
            kind=kind,
            say=self.text(keys["say"], "say"),
            owner=self.owner(keys["owner"]),
            mechanism=self.text(keys["mechanism"], "mechanism") if "mechanism" in keys else "",
            settle=self.text(keys["settle"], "settle") if "settle" in keys else "",
        )

    def condition(self, node: yaml.Node) -> Condition:
        keys = self.mapping(node, "a condition", ("fact", "op", "value", "all", "any", "not"))
        line = node.start_mark.line + 1
        combine: list[Any] = [k for k in ("all", "any", "not") if k in keys]
        if combine:
            if len(keys) > 1:
                raise self.fail(node, f"a condition with {combine[0]} holds nothing else beside it")
            inner = keys[combine[0]]
            parts = [inner] if combine[0] == "not" else self.sequence(inner, combine[0])
            if not parts:
                raise self.fail(inner, f"{combine[0]} is empty; list at least one condition")
            return Condition(line=line, combine=combine[0], parts=tuple(self.condition(p) for p in parts))
        self.need(node, keys, "a condition", ("fact", "op"))
        op: Any = self.one_of(keys["op"], "op", OPS)
        if op in ("known", "unknown"):
            if "value" in keys:
                raise self.fail(keys["value"], f"op {op} takes no value")
            return Condition(line=line, fact=self.text(keys["fact"], "fact"), op=op)
        if "value" not in keys:
            raise self.fail(node, f"op {op} needs a value")
        return Condition(line=line, fact=self.text(keys["fact"], "fact"), op=op, value=self.value(keys["value"], op))

    def value(self, node: yaml.Node, op: str) -> Value | tuple[Value, ...] | FactRef:
        if op == "in":
            return tuple(self.scalar(n, "value") for n in self.sequence(node, "the value of op in"))
        if isinstance(node, yaml.MappingNode):
            keys = self.mapping(node, "value", ("fact",))
            self.need(node, keys, "value", ("fact",))
            return FactRef(fact=self.text(keys["fact"], "fact"))
        found = self.scalar(node, "value")
        if op != "==" and (isinstance(found, (str, bool))):
            raise self.fail(node, f"op {op} compares numbers, and the value is {found!r}")
        return found

    # -- nodes -----------------------------------------------------------------------------------------------------

    def mapping(self, node: yaml.Node, name: str, accepted: Iterable[str]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, f"{name} must be a mapping with keys {', '.join(accepted)}")
        out: dict[str, yaml.Node] = {}
        for key, value in node.value:
            word = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if word not in accepted:
                raise self.fail(key, f"{name} has no key {word!r}; {nearest(word, accepted)}")
            if word in out:
                raise self.fail(key, f"{name} has the key {word!r} twice")
            out[word] = value
        return out

    def need(self, node: yaml.Node, keys: dict[str, yaml.Node], name: str, wanted: Iterable[str]) -> None:
        missing = [k for k in wanted if k not in keys]
        if missing:
            raise self.fail(node, f"{name} needs the key {missing[0]}")

    def sequence(self, node: yaml.Node, name: str) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            raise self.fail(node, f"{name} must be a list")
        return list(node.value)

    def text(self, node: yaml.Node, name: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            raise self.fail(node, f"{name} must be a text")
        return " ".join(node.value.split())

    def texts(self, node: yaml.Node | None, name: str) -> tuple[str, ...]:
        return () if node is None else tuple(self.text(n, name) for n in self.sequence(node, name))

    def scalar(self, node: yaml.Node, name: str) -> Value:
        if not isinstance(node, yaml.ScalarNode):
            raise self.fail(node, f"{name} must be a number, a text, true or false")
        tag = node.tag.rsplit(":", 1)[-1]
        try:
            if tag == "bool":
                return node.value.lower() in ("true", "yes", "on")
            if tag == "int":
                return int(node.value.replace("_", ""), 0)
            if tag == "float":
                return float(node.value.replace("_", ""))
        except ValueError as e:
            raise self.fail(node, f"{name} is not a number that can be read: {node.value!r}") from e
        if tag == "null":
            raise self.fail(node, f"{name} is empty; to ask whether a fact was measured use op known or unknown")
        return str(node.value)

    def one_of(self, node: yaml.Node, name: str, accepted: Iterable[str]) -> Any:
        word = node.value if isinstance(node, yaml.ScalarNode) else "?"
        if word not in accepted:
            raise self.fail(node, f"{name} is {word!r}; {nearest(str(word), accepted)}")
        return word

    def owner(self, node: yaml.Node) -> str:
        word = self.text(node, "owner")
        if word in OWNERS:
            return OWNERS[word]
        return str(self.one_of(node, "owner", [*OWNERS.values(), *OWNERS]))


def nearest(word: str, accepted: Iterable[str]) -> str:
    """What is accepted instead of ``word``: the nearest first, the whole list where it is short."""
    names = list(accepted)
    close = difflib.get_close_matches(word, names, 1, 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"accepted are {', '.join(names)}" if len(names) <= 20 else f"none of the {len(names)} accepted is near"
