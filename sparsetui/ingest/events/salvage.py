"""Events out of JSON that is broken in the ways profilers break it.

Works on Latin-1 text, in which one character is one byte, so that every place named is a byte of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_KEYS = r"ph|cat|name|pid|tid|ts|dur|args|id|bp|s|tts|tdur|cname"
# where one event ends and the next begins; inside a valid string the quotes would be escaped
_BETWEEN = re.compile(rf'\}}\s*+(?:,\s*+)?(?=\{{\s*+"?(?:{_KEYS})"?\s*:)')
_SPACE = re.compile(r"[\s,]*")
_LONGEST = 1 << 20  # no event is longer: one that seems to be has lost a quote or a bracket
_TRIES = 4

_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_UNQUOTED = re.compile(r'("(?:tid|pid|cat|name|ph)"\s*:\s*)(?!null\b|true\b|false\b)([^\s"\d\-{\[,}][^",}\n]*)"')
# a string, closed or not, or what stands between two: read in one pass, for a search that begins anew at each quote takes
# hours where somebody left thousands of them
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*+"?|[^"]++', re.S)
_VALUE_ENDS = re.compile(r"(?:[\d\]}]|true|false|null)$")
_NAME_BEGINS = re.compile(r'"name"\s*+:\s*+"')
_NAME_ENDS = re.compile(rf'"\s*+(?:,\s*+"(?:{_KEYS})"\s*:|\}})')
_DANGLING = re.compile(r",(\s*+[}\]])")


def _integer(digits: str) -> float:
    return int(digits) if len(digits) < 300 else float("inf")


_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)


@dataclass(frozen=True)
class Piece:
    """One stretch of text: an event (``value``), or one that could not be read (``value`` is None)."""

    value: dict[str, Any] | None
    start: int
    end: int
    repaired: bool = False


@dataclass
class Walk:
    """Where a walk over text stopped: ``at`` is the first character not used; ``ended`` that the array was closed."""

    at: int = 0
    ended: bool = False


def walk(text: str, state: Walk, *, final: bool) -> Iterator[Piece]:
    """The events in ``text`` from ``state.at`` on. Unless ``final``, stops before an event that may go on beyond it."""
    while True:
        space = _SPACE.match(text, state.at)
        start = space.end() if space else state.at
        if start >= len(text):
            state.at = len(text)
            return
        if text[start] == "]":
            state.at, state.ended = start + 1, True
            return
        value, end = _decode(text, start)
        if value is not None:
            state.at = end
            event = _in_utf8(value, text[start:end], _whole) if isinstance(value, dict) else None
            yield Piece(event, start, end)
            continue
        if not final and len(text) - start < _LONGEST:  # perhaps it is whole, and only its end is not here yet
            state.at = start
            return
        piece = _repair_from(text, start)
        if piece is None:
            piece = _last(text, start) if final else Piece(None, start, _next_start(text, start))
        state.at = piece.end
        yield piece


def _decode(text: str, start: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start


def _whole(text: str) -> dict[str, Any] | None:
    value, _ = _decode(text, 0)
    return value if isinstance(value, dict) else None


def _in_utf8(value: dict[str, Any], piece: str, read: Callable[[str], dict[str, Any] | None]) -> dict[str, Any]:
    """The event that ``read`` made of ``piece``, from the UTF-8 that it was: escapes in it say characters, not bytes."""
    if piece.isascii():
        return value
    again = read(utf8(piece))
    return {k: utf8(v) if isinstance(v, str) else v for k, v in value.items()} if again is None else again


def _repair_from(text: str, start: int) -> Piece | None:
    """The event at ``start``, mended; None when no end is in sight."""
    ends: list[int] = []
    for m in _BETWEEN.finditer(text, start, min(len(text), start + _LONGEST)):
        ends.append(m.start() + 1)
        if len(ends) == _TRIES:
            break
    for end in ends:
        value = mend(text[start:end])
        if value is not None:
            return Piece(_in_utf8(value, text[start:end], mend), start, end, repaired=True)
    return Piece(None, start, ends[0]) if ends else None


def _last(text: str, start: int) -> Piece:
    """The last event of a file: perhaps whole but broken, perhaps cut short."""
    stop, tries = len(text), 0
    if len(text) - start <= _LONGEST:
        while tries < _TRIES and (close := text.rfind("}", start, stop)) > start:
            value = mend(text[start : close + 1])
            if value is not None and "ph" in value:
                return Piece(_in_utf8(value, text[start : close + 1], mend), start, close + 1, repaired=True)
            stop, tries = close, tries + 1
    return Piece(None, start, len(text))


def _next_start(text: str, start: int) -> int:
    m = _BETWEEN.search(text, start)
    return m.end() if m else len(text)


def mend(piece: str) -> dict[str, Any] | None:
    """One broken event as a dict, after the repairs that known profilers' faults need; None if it stays broken."""
    piece = _escapes(piece)
    for repairs in _REPAIRS:
        tried = piece
        for repair in repairs:
            tried = repair(tried)
        value, end = _decode(tried, 0)
        if isinstance(value, dict) and not tried[end:].strip(" \t\r\n,}]"):
            return value
    return None


def _escapes(piece: str) -> str:
    return _DANGLING.sub(r"\1", _ESCAPE.sub(r"\\\\", piece))


def _missing_quote(piece: str) -> str:
    return _UNQUOTED.sub(r'\1"\2"', piece)


def _missing_comma(piece: str) -> str:
    """A comma before each key that white space alone divides from the value before it."""
    tokens = _TOKEN.findall(piece)
    for i in range(1, len(tokens) - 1):
        gap = tokens[i]
        if (
            gap[0] == '"'
            or not gap[-1].isspace()
            or not tokens[i + 2 : i + 3]
            or not tokens[i + 2].lstrip().startswith(":")
        ):
            continue
        value = gap.rstrip()
        if (not value and tokens[i - 1][0] == '"') or _VALUE_ENDS.search(value[-5:]):
            tokens[i] = f"{value},{gap[len(value) :]}"
    return "".join(tokens)


def _inner_quotes(piece: str) -> str:
    """Quotes inside a name escaped: it ends where the next key of an event begins, or the event ends."""
    out, at = [], 0
    while (begin := _NAME_BEGINS.search(piece, at)) and (end := _NAME_ENDS.search(piece, begin.end())):
        name = re.sub(r'(?<!\\)"', r'\\"', piece[begin.end() : end.start()])
        out += [piece[at : begin.end()], name, end[0]]
        at = end.end()
    return "".join([*out, piece[at:]])


# One repair can spoil what another would mend, so each is tried alone before they are tried together.
_REPAIRS = (
    (),
    (_inner_quotes,),
    (_missing_quote,),
    (_missing_comma,),
    (_missing_quote, _missing_comma),
    (_inner_quotes, _missing_quote, _missing_comma),
)


def utf8(text: str) -> str:
    """Latin-1 text read as the UTF-8 that it was."""
    return text if text.isascii() else text.encode("latin-1", "replace").decode("utf-8", "replace")
