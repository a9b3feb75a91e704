from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsetui.cli.playbooks import app
from sparsetui.playbook import check as checking
from sparsetui.playbook import library
from sparsetui.playbook.check import targets
from sparsetui.playbook.spec import PlaybookError

TEAM = """\
id: {id}
title: Ours
question: live
steps:
  - id: a
    stage: kernel
    ask: q
    owner: ML
    otherwise: {{end: {{kind: no_fault, say: fine, owner: ML}}}}
"""


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A team's folder, named by the environment; the user's own folder is empty."""
    folder = tmp_path / "team"
    folder.mkdir()
    monkeypatch.setenv(library.VARIABLE, str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder


def test_a_playbook_is_found_by_id_file_name_and_path(team: Path) -> None:
    path = team / "file-name.yaml"
    path.write_text(TEAM.format(id="ours"))
    assert library.find("ours").title == "Ours"
    assert library.find("file-name").title == "Ours"
    assert library.find(path).title == "Ours"
    assert library.find("pruned-but-no-faster").question == "missing-speedup"


def test_a_team_overrides_what_ships(team: Path) -> None:
    (team / "x.yaml").write_text(TEAM.format(id="p99-only"))
    assert library.find("p99-only").title == "Ours"
    assert [e.origin for e in library.entries() if e.playbook and e.playbook.id == "p99-only"] == [str(team)]


def test_the_user_folder_is_read(team: Path, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "sparsetui" / "playbooks"
    folder.mkdir(parents=True)
    (folder / "mine.yml").write_text(TEAM.format(id="mine"))
    assert library.find("mine").title == "Ours"


def test_an_unknown_name_gets_the_nearest(team: Path) -> None:
    with pytest.raises(PlaybookError, match="did you mean 'p99-only'"):
        library.find("p99-onli")


def test_a_broken_file_is_listed_with_its_mistake_and_hides_nothing(team: Path) -> None:
    (team / "broken.yaml").write_text("id: x\ntitel: y\n")
    found = library.entries()
    assert sum(e.playbook is not None for e in found) >= 12
    assert [e.error for e in found if e.error] == [
        f"{team}/broken.yaml:2: a playbook has no key 'titel'; did you mean 'title'?"
    ]
    with pytest.raises(PlaybookError, match="titel"):
        library.find("broken")


def test_list_and_show(team: Path) -> None:
    listed = CliRunner().invoke(app, ["list"])
    assert listed.exit_code == 0
    assert "pruned-but-no-faster" in listed.stdout
    shown = CliRunner().invoke(app, ["show", "p99-only"])
    assert shown.exit_code == 0
    assert "if replay.passed == yes" in shown.stdout
    missing = CliRunner().invoke(app, ["show", "nothing-like-it"])
    assert missing.exit_code == 2
    assert "there is no such playbook" in missing.output


def test_check_tells_every_mistake_by_line(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "known_mechanisms", lambda: frozenset({"kernel.generic"}))
    good, bad = team / "good.yaml", team / "bad.yaml"
    good.write_text(TEAM.format(id="good"))
    assert CliRunner().invoke(app, ["check", str(good)]).exit_code == 0
    bad.write_text(
        TEAM.format(id="bad").replace(
            "otherwise: {end", "branches:\n      - when: {fact: nois, op: known}\n        go: z\n    otherwise: {end"
        )
    )
    told = CliRunner().invoke(app, ["check", str(team)])
    assert told.exit_code == 2
    lines = [line for line in told.output.splitlines() if line]
    assert any(line.startswith(f"{bad}:10: there is no fact 'nois'") for line in lines)
    assert any(line.startswith(f"{bad}:11: there is no step 'z'") for line in lines)


def test_check_of_nothing_and_of_a_missing_file(team: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for target in (empty, tmp_path / "no.yaml"):
        told = CliRunner().invoke(app, ["check", str(target)])
        assert told.exit_code == 2
        assert len(told.output.strip().splitlines()) == 1
        assert str(target) in told.output


def test_every_shipped_playbook_passes_with_the_catalogue() -> None:
    named = {
        t.end.mechanism for e in library.entries() if e.playbook for s in e.playbook.steps for t in targets(s) if t.end
    }
    if not named - {""} <= checking.known_mechanisms():
        pytest.skip("the catalogue does not hold every mechanism of the contract yet")
    told = CliRunner().invoke(app, ["check", str(library.shipped())])
    assert told.exit_code == 0, told.output
