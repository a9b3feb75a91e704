"""Text that we did not write, made harmless: one function for terminals and one for Markdown.

A model's module name, a symbol of a foreign process, a stderr tail or a cell of somebody's CSV may hold escape
sequences that move the cursor, bidirectional marks that reorder what is read, or markup. Every face passes such text
through here.
"""

from __future__ import annotations

import re
import unicodedata

# Cc control, Cf format (bidi, zero width, tags, soft hyphen), Cs lone surrogates, Co private use, Zl/Zp line and
# paragraph separators: none of them is a glyph, and each can change what the others look like.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_BREAKS = frozenset("\n\r\t\v\f\x85\u2028\u2029")
_MARKDOWN = re.compile(r"[\\`*_\[\]#|~$]")
_LINK = re.compile(r"(?i)\b(https?|ftp|mailto|xmpp)(:)|\b(www)(\.)")
_BULLET = re.compile(r"^[-+=]")
_NUMBER = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")  # the stop is escaped: a backslash before a digit would show


def clean(text: object, limit: int | None = None) -> str:
    """``text`` as one line that is safe to print.

    Breaks become a space, other unprintable characters visible escapes such as ``\\x1b`` and ``\\u202e``.

    ``limit`` is the most characters to return; what is cut off is shown by a final ``…``. Never raises: any object is
    taken by its ``str``.
    """
    raw = text if isinstance(text, str) else str(text)
    if limit is not None and len(raw) > 4 * limit + 64:
        raw = raw[: 4 * limit + 64]  # an endless line is not worth scanning to its end
        cut = True
    else:
        cut = False
    if raw.isascii() and raw.isprintable():
        out = raw
    else:
        out = "".join(_visible(c) for c in raw.replace("\r\n", "\n"))
    if limit is not None and (len(out) > limit or cut):
        out = out[: max(limit - 1, 0)] + "…" if limit > 0 else ""
    return out


def _visible(c: str) -> str:
    if c in _BREAKS:
        return " "
    if unicodedata.category(c) not in _INVISIBLE:
        return c
    code = ord(c)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def md(text: object, limit: int | None = None) -> str:
    """``text`` as one line that reads literally in Markdown, also in a table cell and at the start of a line.

    Escapes ``\\ ` * _ [ ] # | ~ $``, turns ``< > &`` into entities, and breaks bare links and list markers. Not for
    use inside a code span, where Markdown knows no escapes.
    """
    out = _MARKDOWN.sub(lambda m: "\\" + m.group(), clean(text, limit).strip())
    out = out.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    out = _LINK.sub(lambda m: f"{m.group(1) or m.group(3)}\\{m.group(2) or m.group(4)}", out)
    return _NUMBER.sub(r"\1\\\2", _BULLET.sub(r"\\\g<0>", out))
