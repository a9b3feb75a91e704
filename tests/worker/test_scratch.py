"""Scratch folders of the dead are removed, those of the living never."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from sparsetui.worker.scratch import hold, sweep

HOLD = """
import sys, time
from pathlib import Path
from sparsetui.worker.scratch import hold
hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_only_what_nobody_holds_is_swept(tmp_path: Path) -> None:
    mine, theirs, other = tmp_path / "sparsetui-mine", tmp_path / "sparsetui-theirs", tmp_path / "another-thing"
    other.mkdir()
    fd = hold(mine)
    (mine / "bulk").write_text("x")
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(theirs)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert sweep(tmp_path) == []
    finally:
        process.kill()
        process.wait()
    assert sweep(tmp_path) == [theirs]
    assert not theirs.exists()
    second = hold(mine)
    os.close(fd)
    assert sweep(tmp_path) == []
    os.close(second)
    assert sweep(tmp_path) == [mine]
    assert other.exists()


def test_an_empty_folder_is_left_to_whoever_has_just_made_it(tmp_path: Path) -> None:
    young, old, full = (tmp_path / f"sparsetui-{n}" for n in ("young", "old", "full"))
    for folder in (young, old, full):
        folder.mkdir()
    (full / "data").touch()
    ago = time.time() - 100
    os.utime(old, (ago, ago))
    os.utime(full, (ago, ago))
    assert sweep(tmp_path) == [old]


def test_links_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    os.close(hold(victim))
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "sparsetui-link").symlink_to(victim)
    trap = tmp_path / "place" / "sparsetui-trap"
    trap.mkdir()
    (trap / ".lock").symlink_to(victim / ".lock")
    assert sweep(tmp_path / "place") == []
    assert victim.exists()
    assert sweep(tmp_path / "missing") == []
