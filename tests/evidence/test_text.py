from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from sparsetui.evidence.text import clean, md

anything = st.text(st.characters(exclude_categories=()), max_size=60)


@given(anything)
def test_nothing_invisible_survives(text: str) -> None:
    assert not [c for c in clean(text) if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}]
    clean(text).encode("utf-8")


@given(anything, st.integers(0, 40))
def test_the_limit_holds(text: str, limit: int) -> None:
    assert len(clean(text, limit)) <= limit


def test_escapes_stay_visible_and_breaks_become_spaces() -> None:
    assert clean("a\x1b[2Jb\r\nc\td") == "a\\x1b[2Jb c d"
    assert clean("pay\u202eload") == "pay\\u202eload"
    assert clean("grün ▲") == "grün ▲"
    assert clean("abcdef", 4) == "abc…"
    assert clean(12) == "12"


def test_a_long_line_is_cut_even_when_its_start_would_fit() -> None:
    assert clean("\x1b" * 10_000, 9) == "\\x1b\\x1b…"


def test_markdown_reads_literally() -> None:
    assert md("a|b`c*d_e<f>[g](h)#i\\j\nk") == "a\\|b\\`c\\*d\\_e&lt;f&gt;\\[g\\](h)\\#i\\\\j k"
    assert md("&lt;script") == "&amp;lt;script"
    assert md("see https://x.y and www.z.w") == "see https\\://x.y and www\\.z.w"
    assert md("- item") == "\\- item"
    assert md("1. item") == "1\\. item"
    assert md("1.5 ms") == "1.5 ms"
