"""What the documents say is true of the code: commands, links, names, files, and the examples, which are run."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

ROOT = Path(__file__).parents[1]
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
MECHANISM = re.compile(
    r"(?<![\w./-])(?:ingress|lowering|kernel|scheduling|execution|validation)\.[a-z]+(?:-[a-z]+)+(?![\w./])"
)
# how an example names what it takes, and what stands in its place here
PLACES = {"WORKLOAD.toml": "w.toml", "SESSION": "some-session", "PID": "1", "FILE": "some-file", "NAME": "some-name"}


def ids(paths: list[Path]) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in paths]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a document in one language, without their indent."""
    found = []
    for indent, of, body in FENCE.findall(path.read_text(encoding="utf-8")):
        if of == language:
            found.append("\n".join(line.removeprefix(indent) for line in body.split("\n")))
    return found


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every ``sparsetui …`` in a shell block, and in the first column of a table."""
    for doc in DOCS:
        for block in blocks(doc, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip().startswith("sparsetui"):
                    yield doc.name, line.split("#")[0].split()[1:]
        for cell in re.findall(r"^\| `sparsetui ?([^`]*)`", doc.read_text(encoding="utf-8"), re.MULTILINE):
            words = [re.sub(r"[\[\]…]", "", w) for w in cell.replace("\\|", "|").split() if not w.startswith("[")]
            if len(words) > 1 and "|" in words[1]:  # several commands in one row, without their arguments
                for name in words[1].split("|"):
                    yield doc.name, [words[0], name, "--help"]
            else:
                yield doc.name, words


COMMANDS = sorted({(doc, *words) for doc, words in commands()})


def test_the_readme_begins_with_the_two_commands() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:4]
    assert first[0] == "```sh"
    assert first[1].startswith("make demo ")
    assert first[2].startswith("make test ")
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for doc in DOCS:
        for line in "\n".join(blocks(doc, "sh")).splitlines():
            if line.startswith("make "):
                assert re.search(rf"^{line.split()[1]}:", targets, re.MULTILINE), f"{doc.name}: {line}"


@pytest.mark.parametrize("told", COMMANDS, ids=" ".join)
def test_every_command_parses(told: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Click reads the whole line, options and arguments included; nothing is run."""
    from sparsetui.cli.app import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.toml").touch()
    words = [PLACES.get(w, w) for w in told[1:]]
    command: Any = get_command(app)
    try:
        context = command.make_context("sparsetui", words)
        while hasattr(command, "commands") and (rest := [*getattr(context, "_protected_args", []), *context.args]):
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
    except Exception as e:  # --help ends in one of these
        if getattr(e, "exit_code", None) != 0:
            raise


@pytest.mark.parametrize("doc", DOCS, ids=ids(DOCS))
def test_links_and_pictures_lead_somewhere(doc: Path) -> None:
    text = FENCE.sub("", doc.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            there = doc.parent / path if path else doc
            assert there.exists(), target
            if anchor:
                heads = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in heads}, target


@pytest.mark.parametrize("doc", DOCS, ids=ids(DOCS))
def test_files_that_are_named_exist(doc: Path) -> None:
    named = re.findall(
        r"`((?:sparsetui|tests|bench|playbooks|docs)/[\w./-]+|[\w-]+/[\w/-]+\.(?:py|toml|tcss))`", doc.read_text()
    )
    made_here = {f"sparsetui/probes/interventions/{n}" for n in ("csc_to_csr.py",)}  # by the worked examples
    for name in set(named) - made_here:
        assert (ROOT / name).exists() or (ROOT / "sparsetui" / name).exists(), name


@pytest.mark.parametrize("doc", DOCS, ids=ids(DOCS))
def test_mechanisms_that_are_named_exist(doc: Path) -> None:
    from sparsetui.diagnosis.catalogue import all_mechanisms

    text = doc.read_text(encoding="utf-8")
    defined_here = set(re.findall(r'id="([\w.-]+)"', text))
    assert set(MECHANISM.findall(text)) <= {m.id for m in all_mechanisms()} | defined_here


@pytest.mark.parametrize("doc", DOCS, ids=ids(DOCS))
def test_documents_speak_of_the_product_only(doc: Path) -> None:
    text = doc.read_text(encoding="utf-8")
    for word in ("/work/", "issue #", " helper", "sub-agent", "TODO", "lorem"):
        assert word not in text, word


def test_the_readmes_workload_is_legal(tmp_path: Path) -> None:
    from sparsetui.workload.spec import load

    smallest, claims, foreign = blocks(ROOT / "README.md", "toml")
    (source,) = blocks(ROOT / "README.md", "python")
    (tmp_path / "serving.py").write_text(source + "\ndef evaluate(model): return {}\n")
    (tmp_path / "w.toml").write_text(smallest + claims)
    w = load(tmp_path / "w.toml")
    assert [e.text for e in w.entries().values()] == [
        "serving.py:build_pruned", "serving.py:build_release", "serving.py:evaluate",
    ]  # fmt: skip
    assert w.declared.speedup == 1.5
    other = foreign.replace("/srv/venv/bin/python", sys.executable)
    (tmp_path / "w.toml").write_text(other + smallest[smallest.index("[comparator]") :])
    assert load(tmp_path / "w.toml").failing.threads == 2


def test_the_playbook_of_the_guide_is_right() -> None:
    from sparsetui.diagnosis.catalogue import all_mechanisms
    from sparsetui.playbook.check import check
    from sparsetui.playbook.spec import parse

    (text,) = blocks(ROOT / "CONTRIBUTING.md", "yaml")
    assert check(parse(text, "CONTRIBUTING.md"), {m.id for m in all_mechanisms()}) == []


def example(number: int, package: str, name: str) -> types.ModuleType:
    """A Python block of the guide, run as the module that it says it is."""
    module = types.ModuleType(f"{package}.{name}")
    module.__package__ = package
    exec(
        compile(blocks(ROOT / "CONTRIBUTING.md", "python")[number], f"CONTRIBUTING.md[{number}]", "exec"),
        module.__dict__,
    )
    return module


def test_the_intervention_of_the_guide_removes_its_mechanism(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from sparsetui.diagnosis.case import Case
    from sparsetui.probes import interventions
    from sparsetui.probes.census import census
    from sparsetui.probes.context import Context

    made = example(0, "sparsetui.probes.interventions", "csc_to_csr").INTERVENTION
    monkeypatch.setattr(interventions, "registry", lambda: {made.id: made})
    torch.manual_seed(0)
    dense = torch.randn(64, 64) * (torch.rand(64, 64) < 0.1)
    weight = dense.to_sparse_csc()
    context = Context({"role": "failing"}, str(tmp_path), lambda message: None)
    context.fn, context.inputs = (lambda x: weight @ x), [(torch.randn(64, 8),)]
    seen = census(context, {"steps": 2})
    checked = interventions.check(context, {"intervention": made.id, "count": 1})
    assert checked["applied"]
    assert checked["equal"]

    (mechanism,) = example(1, "sparsetui.diagnosis.mechanisms", "kernel_csc").MECHANISMS
    assert mechanism.intervention == made.id
    assert mechanism.stage == "kernel"
    found = mechanism.suspect(Case(census={"failing": seen}), "failing")
    assert found is not None
    assert found.share > 0
    assert mechanism.suspect(Case(census={"comparator": seen}), "failing") is None


def test_the_screen_of_the_guide_shows_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from sparsetui.session.store import Store
    from sparsetui.tui.app import SparseApp

    screen = example(2, "sparsetui.tui.screens", "faults").SCREEN
    store = Store(tmp_path / "sessions")
    with store.create("ranker") as writer:
        writer.append("fault", {"what": "failing: census", "why": "killed by \x1b[31mSIGSEGV"})
        folder = writer.path

    async def look() -> str:
        app = SparseApp(store, start={"session": str(folder)}, readonly=True)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause(0.05)
            app.push_screen(screen())
            await pilot.pause(0.05)
            await pilot.pause()
            return app.screen_text()

    text = asyncio.run(look())
    assert "failing: census: killed by" in text
    assert "\x1b" not in text
