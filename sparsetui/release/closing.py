"""Closing a session: owners, proofs, waivers and signatures are recorded, gates evaluated, and the session is closed or not."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from sparsetui.evidence.records import Evidence, Gate
from sparsetui.flow import CLOSURE_ARTIFACTS, OWNERS
from sparsetui.playbook import library
from sparsetui.playbook.facts import flatten
from sparsetui.playbook.runner import Trail, walk
from sparsetui.playbook.spec import Playbook, PlaybookError
from sparsetui.session import closure
from sparsetui.session.owners import OwnerFile
from sparsetui.session.state import SessionState

AUTO = "auto"
# which evidence proves a role's closure artifact, best first
PROOFS: dict[str, tuple[str, ...]] = {
    OWNERS["ML"]: ("matrix", "inventory"),
    OWNERS["KL"]: ("native", "profile", "census"),
    OWNERS["RT"]: ("quality", "outputs", "replay"),
    OWNERS["PR"]: ("rehearsal", "replay"),
}


class ClosingError(ValueError):
    """What was asked for cannot be recorded; one line."""


class Book(Protocol):
    """What can be written to: a session's writer, or a runner's journal."""

    def append(self, kind: str, body: Any) -> Any: ...
    def state(self) -> SessionState: ...


def role_of(text: str) -> str:
    """A role by its full name or its short one (ML, KL, RT, PR). Raises :class:`ClosingError`."""
    by_name = {n.casefold(): role for code, role in OWNERS.items() for n in (code, role, role.replace(" ", "-"))}
    role = by_name.get(text.strip().strip("\"'").casefold())
    if role is None:
        short = ", ".join(f"{code} ({role})" for code, role in OWNERS.items())
        raise ClosingError(f"{text!r} is no role; accepted are {short}")
    return role


def pair_of(text: str, option: str, what: str) -> tuple[str, str]:
    """``ROLE=VALUE`` taken apart. Raises :class:`ClosingError`."""
    role, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise ClosingError(f"{option} {text!r}: expected ROLE={what}")
    return role_of(role), value.strip()


def assign(book: Book, owners: Mapping[str, str], source: str) -> None:
    known = book.state().owners
    for role, who in owners.items():
        if who and known.get(role) != who:
            book.append("owner", {"role": role, "who": who, "source": source})


def from_file(file: OwnerFile) -> dict[str, str]:
    return {role: who for role, who in file.roles.items() if who}


def attach(book: Book, role: str, evidence: str) -> str:
    """Attach an evidence as the role's closure artifact; ``auto`` takes the newest that proves it. Returns its id."""
    state = book.state()
    found = _best(state, role) if evidence == AUTO else next((e for e in state.evidence if e.id == evidence), None)
    if found is None:
        held = ", ".join(e.id for e in state.evidence[-12:]) or "none"
        wanted = f"no {' or '.join(PROOFS[role])} evidence" if evidence == AUTO else f"no evidence {evidence}"
        raise ClosingError(f"--attach {role}: this session has {wanted}; the newest are {held}")
    if not found.sha256:
        raise ClosingError(f"--attach {role}: {found.id} ({found.probe}) has no artifact to prove anything with")
    if not any(a.get("role") == role and a.get("evidence") == found.id for a in state.artifacts):
        book.append("artifact", {"role": role, "evidence": found.id, "why": CLOSURE_ARTIFACTS[role]})
    return found.id


def _best(state: SessionState, role: str) -> Evidence | None:
    for probe in PROOFS[role]:
        for e in reversed(state.evidence):
            if e.probe == probe and e.sha256 and e.quality != "unavailable":
                return e
    return None


def waive(book: Book, gate: str, why: str, by: str) -> None:
    try:
        book.append("waiver", closure.waiver(gate, why, by))
    except ValueError as e:
        raise ClosingError(str(e)) from None


def sign(book: Book, role: str, who: str) -> None:
    book.append("signoff", {"role": role, "who": who, "note": ""})


def follow(book: Book, playbook: Playbook) -> Trail:
    """Walk ``playbook`` over what the session holds, and put the way it took on record."""
    trail = walk(playbook, flatten(book.state()))
    found = msgspec.json.decode(msgspec.json.encode(trail))  # as it reads back from a ledger
    if book.state().playbook != found:
        book.append("playbook", found)
    return trail


def walk_again(book: Book) -> None:
    """The playbook that the session follows may ask for what was measured just now. One that is not here any more stays as
    it was walked."""
    followed = str(book.state().playbook.get("id") or "")
    if followed:
        with contextlib.suppress(PlaybookError):
            follow(book, library.find(followed))


def evaluate(book: Book, by: str = "") -> tuple[Gate, ...]:
    """Evaluate the gates; those that changed are recorded, and so is that the session is closed, once all hold: ``by``
    whoever closes it, else by those who signed."""
    state = book.state()
    known = {g.gate: g for g in state.gates}
    gates = closure.gates(state)
    for gate in gates:
        if known.get(gate.gate) != gate:
            book.append("gate", gate)
    if state.closed is None and all(g.state in ("passed", "waived") for g in gates):
        signed = ", ".join(dict.fromkeys(str(s.get("who", "")) for s in state.signoffs))
        book.append("closed", {"by": by or signed or "nobody signed"})
    return gates
