"""What leaves the app: the memo, copied text, pictures of the screen, and what a run would execute, in words."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetui.evidence.text import clean

if TYPE_CHECKING:
    from sparsetui.tui.desk import Desk

_OSC52_LIMIT = 74_000  # xterm and tmux drop a longer sequence, and some print it


def first_line(error: BaseException) -> str:
    """An error as one line that is safe to show."""
    return clean((str(error) or type(error).__name__).splitlines()[0], 300)


def files_to_run(workload: Any) -> list[str]:
    """What a run of ``workload`` executes, in lines for a person."""
    lines = ["An investigation runs this code on this host, with your rights:", ""]
    for key, entry in workload.entries().items():
        lines.append(f"  {key}  {entry.text}")
    lines += ["", "from these files:"]
    lines += [f"  {path}" for path in workload.files()]
    lines += [f"  module {name} (found by the worker's interpreter)" for name in workload.modules()]
    pythons = dict.fromkeys(p for p in (workload.failing.python, workload.comparator.python) if p)
    lines += [f"  under {python}" for python in pythons]
    return lines


def write_memo(desk: Desk, text: str) -> Path:
    """``memo.md`` in the session's folder; elsewhere where that is somebody else's or cannot be written.

    Raises ``OSError`` (or what the session store raises) when there is no place for it.
    """
    folder = desk.folder
    if folder is None:
        return write_private(Path.cwd(), "memo", ".md", text)
    if desk.readonly or desk.followed or not os.access(folder, os.W_OK):
        return write_private(None, f"memo-{desk.state.id}", ".md", text)
    from sparsetui.session.files import write_whole

    path = folder / "memo.md"
    write_whole(path, text.encode("utf-8", "replace"))
    return path


def copy(text: str, write: Callable[[str], object] | None) -> list[str]:
    """Copy ``text`` to a file, to tmux and through ``write`` (OSC 52); returns the places it went, the file last."""
    path = write_private(None, "sparsetui-yank", ".txt", text + "\n")
    where = []
    if tmux_copy(text):
        where.append("tmux buffer")
    sequence = osc52(text)
    if sequence is not None and write is not None:
        write(sequence)
        where.append("clipboard")
    return [*where, str(path)]


def now() -> str:
    """The time as it stands in the names of files."""
    return time.strftime("%Y%m%d-%H%M%S")


def write_private(folder: Path | None, stem: str, suffix: str, text: str, stamp: str = "") -> Path:
    """``text`` in a new file for its owner's eyes; in the temporary folder where ``folder`` cannot be written."""
    stamp = stamp or now()
    for place in (folder, Path(tempfile.gettempdir())):
        if place is None:
            continue
        for n in range(100):
            path = place / (f"{stem}-{stamp}{suffix}" if n == 0 else f"{stem}-{stamp}-{n}{suffix}")
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            except FileExistsError:
                continue
            except OSError:
                break
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
            return path
    raise OSError(f"no folder to write {stem}{suffix} into")


def tmux_copy(text: str, env: Mapping[str, str] = os.environ) -> bool:
    """Hand ``text`` to tmux, which also passes it to the outer terminal (``-w``). False where there is no tmux."""
    if "TMUX" not in env or not shutil.which("tmux"):
        return False
    try:
        done = subprocess.run(
            ["tmux", "load-buffer", "-w", "-"],
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=2,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def osc52(text: str) -> str | None:
    """The escape sequence that asks the terminal to copy ``text``; ``None`` when it is too long to be passed on."""
    payload = base64.b64encode(text.encode()).decode("ascii")
    return f"\x1b]52;c;{payload}\a" if len(payload) <= _OSC52_LIMIT else None
