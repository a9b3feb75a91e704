"""A session that was carried to another machine tells the same there, byte for byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsetui.cli.memo import Form, write_form
from sparsetui.session.store import Store

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "sessions").glob("example-*"))
# what the other machine does: it imports, tells each form's hash, and exports again
THERE = """
import hashlib, sys
from pathlib import Path
from sparsetui.cli.memo import Form, write_form
from sparsetui.session.store import Store
store = Store(Path.cwd() / "sessions")
found = store.import_(Path(sys.argv[1]))
for form in Form:
    print(form.value, hashlib.sha256(write_form(store.open(found).state(), form)).hexdigest())
store.export(found, Path(sys.argv[2]))
"""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_the_memo_is_the_same_in_every_form_after_export_and_import(example: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "sessions").mkdir(parents=True)
    packed, again = tmp_path / "moved.tar.gz", tmp_path / "again.tar.gz"
    store = Store(example.parent)
    store.export(example.name, packed)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TZ": "Asia/Kathmandu", "LC_ALL": "C", "COLUMNS": "40",
           "HOME": str(there), "NO_COLOR": "1", "PYTHONHASHSEED": "7"}  # fmt: skip
    got = subprocess.run([sys.executable, "-c", THERE, str(packed), str(again)], cwd=there, env=env, capture_output=True,
                         text=True, timeout=120)  # fmt: skip
    assert got.returncode == 0, got.stderr
    state = store.open(example.name).state()
    want = {f"{form.value} {hashlib.sha256(write_form(state, form)).hexdigest()}" for form in Form}
    assert set(got.stdout.splitlines()) == want
    moved = there / "sessions" / example.name
    assert (moved / "memo.md").read_bytes() == (example / "memo.md").read_bytes()
    assert again.read_bytes() == packed.read_bytes()
