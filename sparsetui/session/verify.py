"""``sessions verify``: is everything in this folder as it was written, and if not, what is lost?"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sparsetui.session.artifacts import MAX_ARTIFACT, Artifacts
from sparsetui.session.errors import SessionError
from sparsetui.session.folder import ARTIFACTS, HEAD, LEDGER, LOCK, read_header
from sparsetui.session.ledger import read_head
from sparsetui.session.lock import read_owner
from sparsetui.session.reader import read_ledger
from sparsetui.session.state import fold


class VerifyReport(msgspec.Struct, frozen=True):
    """What was checked and what was found. ``ok``: all that was ever acknowledged is there and unaltered."""

    id: str
    path: str
    ok: bool
    events: int  # lines in the ledger
    whole: int  # of them readable and vouched for by the chain
    torn_bytes: int
    torn_acknowledged: bool | None  # None when there is no torn line to ask about, or nothing to compare it with
    broken: tuple[dict[str, int | str | None], ...]  # line, seq, why
    artifacts: int  # named by evidence and intact
    missing: tuple[str, ...]  # named by evidence, not there
    damaged: tuple[str, ...]  # there, but not what the name says
    unnamed: int  # intact, but named by no event: written just before a writer died
    header: str  # what is wrong with session.json, or empty
    notes: tuple[str, ...] = ()

    @property
    def problems(self) -> list[str]:
        """One line for each thing that is not as it was written; empty when ``ok``."""
        out = [f"header: {self.header}"] if self.header else []
        for b in self.broken:
            number = "" if b["seq"] is None else f" (event {b['seq']})"
            out.append(f"ledger: line {b['line']}{number}: {b['why']}")
        if self.torn_bytes and self.torn_acknowledged is not False:
            doubt = (
                "it had been acknowledged" if self.torn_acknowledged else "whether it was acknowledged cannot be told"
            )
            out.append(f"ledger: torn last line of {self.torn_bytes} bytes is dropped: {doubt}")
        out += [f"artifact {sha}: missing" for sha in self.missing]
        return out + [f"artifact {why}" for why in self.damaged]

    def lines(self) -> list[str]:
        """The report as lines to print."""
        out = [f"{self.id}: {'whole' if self.ok else 'DAMAGED'}"]
        out.append(f"  ledger: {self.whole} of {self.events} events whole")
        out.append(f"  artifacts: {self.artifacts} intact, {len(self.missing)} missing, {len(self.damaged)} damaged")
        out += [f"  {p}" for p in self.problems]
        if self.torn_bytes and self.torn_acknowledged is False:
            out.append(
                f"  note: torn last line of {self.torn_bytes} bytes is dropped: "
                "it was never acknowledged, nothing is lost"
            )
        if self.unnamed:
            out.append(f"  note: {self.unnamed} artifacts are named by no event")
        return out + [f"  note: {n}" for n in self.notes]


def verify(path: Path, budget: int | None = None) -> VerifyReport:
    """Check the session in ``path``: header, chain, head, and the hash of every artifact. Reads only.

    ``budget`` bounds the bytes that all artifacts together may unpack to, for sessions from outside.
    """
    notes: list[str] = []
    header = ""
    try:
        read_header(path)
    except SessionError as e:
        header = e.message
    _, found = read_ledger(path)
    if read_head(path / HEAD) is None and found.total:
        notes.append("ledger.head is missing or damaged: the last line is vouched for by nothing")
    if not found.total and not (path / LEDGER).exists():
        header = header or f"{path / LEDGER}: no such file"
    owner = read_owner(path / LOCK)
    if owner is not None:
        notes.append(f"being written by {owner}" if owner.alive else f"its last writer died: {owner}")
    state = fold(found.events, path.name)
    store = Artifacts(path / ARTIFACTS)
    named = {e.sha256 for e in state.evidence if e.sha256}
    stored = set(store.stored())
    intact, damaged = set(), []
    for sha in sorted(stored):
        try:
            size = len(store.read(sha, MAX_ARTIFACT if budget is None else budget))
            budget = None if budget is None else budget - size
            intact.add(sha)
        except SessionError as e:
            damaged.append(e.message)
    missing = sorted(named - stored)
    torn = found.torn_acknowledged if found.torn else None
    sound = not (found.damage or damaged or missing or header)
    return VerifyReport(
        id=path.name,
        path=str(path),
        ok=sound and (not found.torn or found.torn_acknowledged is False),
        events=found.total,
        whole=len(found.events),
        torn_bytes=found.torn,
        torn_acknowledged=torn,
        broken=tuple({"line": d.line, "seq": d.seq, "why": d.why} for d in found.damage),
        artifacts=len(intact & named),
        missing=tuple(missing),
        damaged=tuple(damaged),
        unnamed=len(intact - named),
        header=header,
        notes=tuple(notes),
    )
