"""The terminal itself: is there one, how many colours it has, and how text leaves it."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Depth = Literal["none", "16", "256", "true"]

RESTORE = "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[<u\x1b[?1049l\x1b[?25h\x1b[0m\r\n"
_OSC52_LIMIT = 74_000  # xterm and tmux drop a longer sequence, and some print it


def why_no_terminal(env: Mapping[str, str] = os.environ) -> str | None:
    """``None`` where the app can run, else why not: Textual would paint into a closed stdin or a dumb terminal."""
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout")):
        try:
            if stream is None or not stream.isatty():
                return f"{name} is not a terminal"
        except ValueError:
            return f"{name} is closed"
    if env.get("TERM", "") in ("", "dumb", "unknown"):
        return f"TERM is {env.get('TERM') or 'not set'}"
    return None


def colour_depth(env: Mapping[str, str] = os.environ) -> Depth:
    """What the environment promises; an unknown terminal gets sixteen colours, never none."""
    if env.get("NO_COLOR") is not None:
        return "none"
    if env.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "true"
    term = env.get("TERM", "")
    if "256" in term or "direct" in term or "kitty" in term or "alacritty" in term:
        return "256"
    if term in ("vt100", "vt220", "vt102"):
        return "none"
    return "16"


def light_background(env: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal says that its background is light (``COLORFGBG``, set by rxvt, konsole and others)."""
    last = env.get("COLORFGBG", "").rsplit(";", 1)[-1]
    return last in ("7", "15")


def write_private(folder: Path | None, stem: str, suffix: str, text: str) -> Path:
    """``text`` in a new file for its owner's eyes; in the temporary folder where ``folder`` cannot be written."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
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
