"""The layout of a session's folder, its header, and its name."""

from __future__ import annotations

import os
import re
import secrets
import socket
import unicodedata
from pathlib import Path

import msgspec

import sparsetui
from sparsetui.evidence.records import to_json
from sparsetui.session.errors import DamagedError, storage
from sparsetui.session.files import read_regular, write_whole
from sparsetui.session.ledger import now

SCHEMA = 1
HEADER, LEDGER, HEAD, LOCK, MEMO, ARTIFACTS = (
    "session.json",
    "ledger.jsonl",
    "ledger.head",
    "lock",
    "memo.md",
    "artifacts",
)
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
_MAX_HEADER = 64 << 10


class Header(msgspec.Struct, frozen=True):
    """``session.json``. Written once; all that changes is in the ledger."""

    schema: int
    title: str
    created: str
    host: str
    tool: str


def new_header(title: str) -> Header:
    return Header(SCHEMA, title, now(), socket.gethostname(), f"sparsetui {sparsetui.__version__}")


def write_header(folder: Path, header: Header) -> None:
    write_whole(folder / HEADER, to_json(header, indent=2) + b"\n")


def read_header(folder: Path) -> Header:
    """The header of the session in ``folder``. Raises :class:`DamagedError`, or :class:`StorageError`."""
    path = folder / HEADER
    with storage("read the header", path):
        data = read_regular(path, _MAX_HEADER)
    try:
        header = msgspec.json.decode(data, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise DamagedError(f"{path}: is not a session's header: {e}") from e
    if header.schema != SCHEMA:
        raise DamagedError(f"{path}: schema {header.schema} is not known; this version reads schema {SCHEMA}")
    return header


def is_session(folder: Path) -> bool:
    """Whether ``folder`` holds a header or a ledger; a name that cannot be one, or may not be looked at, does not."""
    return os.path.isfile(f"{folder}/{HEADER}") or os.path.isfile(f"{folder}/{LEDGER}")  # Path.is_file may raise


def new_id(workload: str, created: str) -> str:
    """``2026-11-30-ranker-7f3a``: the day, the workload's name reduced to ``a-z0-9-``, four random hex digits."""
    plain = unicodedata.normalize("NFKD", workload).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40].strip("-") or "session"
    return f"{created[:10]}-{slug}-{secrets.token_hex(2)}"
