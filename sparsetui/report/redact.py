"""A session without its hosts, users and paths, for a memo that leaves the house.

Works on the state and not on a rendered text, so that every form is redacted by the same rule. People become
``person 1``, ``person 2`` … in the order in which they appear: who signed and who waived can still be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from sparsetui.session.state import SessionState

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>|]+", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_PATH = re.compile(r"(?<![\w/.\]])(?:~[\w.-]*|\.{1,2})?/[^\s'\"<>|:;,()\[\]{}/]+(?:/[^\s'\"<>|:;,()\[\]{}/]+)*/?")
_RELATIVE = re.compile(r"(?<![\w/.:])(?:[\w.@+-]+/)+[\w@+-]+(?:\.[A-Za-z]\w{0,6})+(?!\w)")
_FILE = re.compile(r"[\w@+-]+(?:\.[A-Za-z]\w{0,6})+")
# values under these keys are a host's or a person's name as a whole
_HOST_KEYS = frozenset({"host", "hostname", "node", "nodename", "fqdn"})
_USER_KEYS = frozenset({"user", "username", "login", "home"})


def redacted(state: SessionState) -> SessionState:
    """``state`` with ``[host]``, ``person N``, ``[path]`` and ``[url]`` in place of what would identify somebody."""
    raw = msgspec.to_builtins(state)
    return msgspec.convert(scrubber(state, raw).walk(raw), SessionState)


def scrubber(state: SessionState, raw: Any) -> Scrubber:
    """What takes the people of ``state`` and the hosts that ``raw`` (plain JSON) names out of anything of that session."""
    return Scrubber(_hosts(raw), _people(state))


def _people(state: SessionState) -> list[str]:
    names: list[str] = list(state.owners.values())
    names += [str(s.get("who", "")) for s in state.signoffs]
    names += [str(x.get("by", "")) for x in (*state.waivers, *state.notes)]
    names += [g.by for g in state.gates]
    known = {n.strip() for n in names}
    if not all(part in known for part in (state.closed or "").split(", ")):  # else it is those who signed, one after the other
        names.append(state.closed or "")
    return [n for n in dict.fromkeys(n.strip() for n in names) if n]


def _hosts(raw: Any) -> list[str]:
    found: dict[str, None] = {}

    def look(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if str(key).lower() in _HOST_KEYS and isinstance(value, str) and len(value) > 1:
                    found[value] = None
                    found.setdefault(value.split(".")[0], None)
                look(value)
        elif isinstance(node, (list, tuple)):
            for item in node:
                look(item)

    look(raw)
    return [h for h in found if h]


class Scrubber:
    """Replaces names in plain JSON, values and keys alike."""

    def __init__(self, hosts: Iterable[str], people: Iterable[str]) -> None:
        self._person = {name: f"person {i}" for i, name in enumerate(people, 1)}
        self._hosts = list(hosts)
        words = sorted([*self._hosts, *self._person], key=len, reverse=True)
        self._words = re.compile("|".join(rf"(?<!\w){re.escape(w)}(?!\w)" for w in words)) if words else None

    def walk(self, node: Any, key: str = "") -> Any:
        if isinstance(node, str):
            if key.lower() in _HOST_KEYS and node:
                return "[host]"
            return "[user]" if key.lower() in _USER_KEYS and node else self.text(node)
        if isinstance(node, dict):
            out: dict[str, Any] = {}
            for k, v in node.items():
                name = (
                    str(k) if str(k).isidentifier() else self.text(str(k))
                )  # a field keeps its name, whoever shares it
                while name in out:  # two files of one name: both of their figures stay
                    name += "'"
                out[name] = self.walk(v, str(k))
            return out
        if isinstance(node, (list, tuple)):
            return [self.walk(v) for v in node]
        return node

    def text(self, text: str) -> str:
        if self._words is not None:
            text = self._words.sub(lambda m: self._person.get(m.group(), "[host]"), text)
        text = _URL.sub("[url]", text)
        text = _MAIL.sub("[address]", text)
        text = _ADDRESS.sub("[address]", text)
        text = _PATH.sub(_shorten, text)
        return _RELATIVE.sub(_shorten, text)


def _shorten(match: re.Match[str]) -> str:
    """The file's own name stays, since findings point into it; the folders above it go."""
    last = match.group().rstrip("/").rsplit("/", 1)[-1]
    return f"[path]/{last}" if _FILE.fullmatch(last) else "[path]"
