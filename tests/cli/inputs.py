"""What the commands are fed: bad files of every sort, bad words, and one good example of each thing they take."""

from __future__ import annotations

import gzip
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsetui.session.store import Store

ESCAPES = "\x1b[31m\x1b]0;owned\x07\u202eevil\u2066[bold]x[/bold]"


@dataclass(frozen=True)
class Param:
    """One parameter of one command, as the command line library knows it."""

    command: tuple[str, ...]
    name: str
    flag: str  # "" for an argument
    takes_value: bool
    required: bool
    many: bool
    number: bool

    @property
    def id(self) -> str:
        return " ".join((*self.command, self.flag or self.name.upper()))


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command below ``group`` with its path, groups included."""
    found: dict[tuple[str, ...], Any] = {path: group}
    for name, sub in getattr(group, "commands", {}).items():
        found |= commands(sub, (*path, name))
    return found


def parameters(group: Any) -> list[Param]:
    return [
        Param(
            command=path,
            name=p.name,
            flag=max(p.opts, key=len) if p.param_type_name == "option" else "",
            takes_value=p.param_type_name == "argument" or not p.is_flag,
            required=bool(p.required),
            many=p.nargs == -1,
            number=getattr(p, "min", None) is not None or "PID" in (p.metavar or ""),
        )
        for path, command in commands(group).items()
        for p in command.params
    ]


@dataclass(frozen=True)
class World:
    """A folder with one good example of everything and one bad file of every sort."""

    folder: Path
    workload: Path
    trace: Path
    session: str
    sessions: Path
    archive: Path
    playbook: Path
    bad: dict[str, str]
    bad_targets: dict[str, str]
    bad_folders: dict[str, str]


WORDS = {"word": "zzz-nothing", "escapes": ESCAPES, "bytes": os.fsdecode(b"\xff\xfe\x80"), "long": "x" * 100_000,
         "empty word": "", "dash": "-", "markup": "[/x][red]{}%s%n", "star": "*", "tilde": "~nobody-here/x"}  # fmt: skip
NUMBERS = {"word": "abc", "empty": "", "not a number": "nan", "infinite": "inf", "minus": "-3", "zero": "0", "huge": "1e999",
           "long": "9" * 5000, "hex": "0x10", "escapes": ESCAPES, "bytes": os.fsdecode(b"\xff")}  # fmt: skip


def build(folder: Path) -> World:
    folder.chmod(0o755)
    files = folder / "bad"
    files.mkdir()
    bad = dict(WORDS) | {k: str(v) for k, v in _bad_files(files).items()}
    sessions = folder / "store"
    store = Store(sessions)
    with store.create("good", "a good one") as w:
        w.evidence("kernel", "census", {"ops": [1, 2, 3]}, summary="three ops")
        w.append("unanswered", {"question": "which kernel", "why": "nothing ran", "settle": "a run"})
        w.write_memo("# memo")
    archive = store.export(w.id, folder / "good.tar.gz")
    code = folder / "serving.py"
    code.write_text("def build():\n    return lambda x: x\n")
    workload = folder / "good.toml"
    workload.write_text(
        f'[failing]\nentry = "{code}:build"\n[comparator]\nentry = "{code}:build"\n[inputs]\nshape = [2, 2]\n'
    )
    trace = folder / "good.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 5, "pid": 1, "tid": 1, "args": {}}
    events = [{**event, "ts": 10 * i} for i in range(20)]
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    playbook = next(Path(__file__).parents[2].glob("playbooks/*.yaml"))
    taken = {k: bad[k] for k in ("directory", "fifo", "below a file", "no folder", "loop", "too long", "full device")}
    return World(folder, workload, trace, w.id, sessions, archive, playbook, bad, taken | {"empty word": ""},
                 {k: bad[k] for k in ("text", "binary", "fifo", "loop", "too long", "below a file", "full device")})  # fmt: skip


def _bad_files(folder: Path) -> dict[str, Path]:
    made = {
        "missing": folder / "missing.json",
        "no folder": folder / "no" / "folder" / "x.json",
        "directory": folder / "directory.toml",
        "empty": folder / "empty.json",
        "binary": folder / "binary.bin",
        "text": folder / "text.txt",
        "huge line": folder / "line.json",
        "huge sparse": folder / "sparse.toml",
        "zero device": Path("/dev/zero"),
        "full device": Path("/dev/full"),
        "null device": Path("/dev/null"),
        "fifo": folder / "fifo.yaml",
        "loop": folder / "loop.pt",
        "broken gzip": folder / "broken.json.gz",
        "nested": folder / "nested.json",
        "nul": folder / "nul.toml",
        "too long": folder / ("y" * 5000),
        "below a file": folder / "text.txt" / "x.json",
        "socket-like escape name": folder / f"name{ESCAPES.replace('/', '')}.toml",
        "pickle": folder / "evil.pt",
    }
    made["directory"].mkdir()
    made["empty"].touch()
    made["binary"].write_bytes(bytes(range(256)) * 64)
    made["text"].write_text("hello\n" * 10)
    made["huge line"].write_bytes(b'{"traceEvents": "' + b"x" * (8 << 20))
    with made["huge sparse"].open("wb") as f:
        f.truncate(3 << 30)
    os.mkfifo(made["fifo"])
    made["loop"].symlink_to(made["loop"])
    made["broken gzip"].write_bytes(gzip.compress(b'{"traceEvents": []}')[:-9])
    made["nested"].write_text("[" * 200_000)
    made["nul"].write_bytes(b"[failing]\nentry = 'a\x00b:c'\n")
    made["socket-like escape name"].write_text("[failing]\nentry = 3\n")
    made["pickle"].write_bytes(b"cos\nsystem\n(S'touch /tmp/sparsetui-was-owned'\ntR.")
    return made


def unreadable(folder: Path) -> Path:
    path = folder / "unreadable.toml"
    path.write_text("[failing]\n")
    path.chmod(0)
    folder.chmod(folder.stat().st_mode | stat.S_IROTH | stat.S_IXOTH)
    return path
