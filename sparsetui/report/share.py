"""A session that may leave the house: a copy of it without hosts, users and paths, in its ledger and in every artifact.

The copy is a whole session with a chain and hashes of its own: it opens, verifies and renders like any other. What is lost
is only what redaction takes, and that its artifacts have the hashes of the originals.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.report.memo import render
from sparsetui.report.redact import Scrubber, scrubber
from sparsetui.session.artifacts import Artifacts
from sparsetui.session.errors import RefusedError, SessionError, storage
from sparsetui.session.files import write_whole
from sparsetui.session.folder import ARTIFACTS, HEAD, ID, LEDGER, MEMO, Header, read_header, write_header
from sparsetui.session.ledger import LedgerWriter, encode_body
from sparsetui.session.reader import Reader
from sparsetui.session.state import Event, Folder


def share(source: Path, root: Path, id: str) -> Path:
    """Write a redacted copy of the session in ``source`` as ``root/id`` and return that folder.

    Raises :class:`SessionError` where ``id`` is taken or no name of a session, or where the source is damaged.
    """
    reader = Reader(source)
    if reader.damage:
        raise RefusedError(f"{source}: is damaged, so it is not copied: {reader.damage[0]}")
    if not ID.fullmatch(id):
        raise SessionError(
            f"{id[:120]!r} is no name of a session; accepted are letters, digits, dots, dashes and underscores"
        )
    target = root / id
    with storage("create", target):
        try:
            os.makedirs(target, mode=0o700)
        except FileExistsError:
            raise SessionError(f"{target}: is already here; delete or rename it first") from None
    events, header = reader.events(), read_header(source)
    stored = {sha: msgspec.json.decode(reader.artifact(sha)) for sha in Artifacts(source / ARTIFACTS).stored()}
    scrub = scrubber(reader.state(), [msgspec.to_builtins(header), *(e.body for e in events), *stored.values()])
    names = {reader.id: id}
    artifacts = Artifacts(target / ARTIFACTS)
    for sha, content in stored.items():
        names[sha] = artifacts.put(encode_body("artifact", _renamed(scrub, content, names)))
    write_header(target, msgspec.convert(_renamed(scrub, msgspec.to_builtins(header), names), Header))
    _write_ledger(target, [msgspec.structs.replace(e, body=_renamed(scrub, e.body, names)) for e in events])
    write_whole(target / MEMO, render(Reader(target).state()).encode())
    return target


def _renamed(scrub: Scrubber, content: Any, names: dict[str, str]) -> Any:
    """``content`` redacted, with the copy's own id and hashes."""

    def named(node: Any) -> Any:
        if isinstance(node, str):
            return names.get(node, node)
        if isinstance(node, dict):
            return {k: named(v) for k, v in node.items()}
        return [named(v) for v in node] if isinstance(node, (list, tuple)) else node

    return named(scrub.walk(content))


def _write_ledger(target: Path, events: list[Event]) -> None:
    """The same events at the same times, chained anew."""
    lines, prev = [], ""
    folder = Folder(target.name)
    for event in events:
        line = msgspec.json.encode(msgspec.structs.replace(event, prev=prev))
        lines.append(line + b"\n")
        prev = sha256(line).hexdigest()
    folder.feed_all(events)
    write_whole(target / LEDGER, b"".join(lines))
    ledger = LedgerWriter(target / LEDGER, target / HEAD)
    try:
        ledger.write_head(folder.summary())
    finally:
        ledger.close()
