from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsetui.flow import OWNERS
from sparsetui.session.errors import SessionError
from sparsetui.session.owners import parse_owners, read_owners

FILE = """\
# whom to call
*                          @platform

ML performance engineer    @perf-team lead@example.org   # two of them
KL                         @org/kernels
[runtime systems architect] @runtime
serving/                   @serving
serving/**/fast.py         @speed
*.toml                     @config
/top.py                    @top
serving/orphan.py
"""


def test_roles_by_name_and_by_short_name_with_a_default() -> None:
    assert parse_owners(FILE).roles == {
        "ML performance engineer": "@perf-team lead@example.org",
        "sparse kernel library owner": "@org/kernels",
        "runtime systems architect": "@runtime",
        "production reliability owner": "@platform",
    }


@pytest.mark.parametrize(
    ("path", "who"),
    [
        ("serving/model.py", "@serving"),
        ("serving/a/b/fast.py", "@speed"),
        ("serving/fast.py", "@speed"),
        ("deep/down/w.toml", "@config"),
        ("top.py", "@top"),
        ("a/top.py", "@platform"),
        ("serving/orphan.py", ""),
        ("other.py", "@platform"),
    ],
)
def test_the_last_pattern_that_matches_wins(path: str, who: str) -> None:
    assert parse_owners(FILE).of_path(path) == who


def test_a_later_role_line_wins_and_may_leave_nobody() -> None:
    text = "ML @a\nML performance engineer @b\nPR @c\nPR\n"
    assert parse_owners(text).roles == {"ML performance engineer": "@b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n@nobody\n", "line 2: owners without a role"),
        ("chief sparsity officer @x\n", "line 1: 'chief sparsity officer' is neither a role"),
        ("ML perf-team\n", "line 1: 'ML perf-team' is neither a role"),
    ],
)
def test_a_bad_line_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_owners(text)


def test_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "OWNERS"
    file.write_text("ML\nsome body else\n")
    with pytest.raises(SessionError, match=r"OWNERS: line 2: .*ML performance engineer"):
        read_owners(file)
    file.write_bytes(b"ML @\xff\n")
    with pytest.raises(SessionError, match="not UTF-8"):
        read_owners(file)
    with pytest.raises(SessionError, match="no such file"):
        read_owners(tmp_path / "none")


@given(st.text(max_size=80))
def test_any_text_gives_owners_or_a_line(text: str) -> None:
    try:
        found = parse_owners(text)
    except ValueError as e:
        error = str(e)
    else:
        assert set(found.roles) <= set(OWNERS.values())
        found.of_path("a/b.py")
        return
    assert error.startswith("line ")
