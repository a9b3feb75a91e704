"""The headless summary: the verdict, the key figures and where the memo lies, in a dozen plain lines."""

from __future__ import annotations

from typing import TextIO

from sparsetui.evidence.text import clean
from sparsetui.report import plots
from sparsetui.report.facts import Facts, deciding_figure, facts_of
from sparsetui.report.incident import STATUS
from sparsetui.report.short import key_figures
from sparsetui.session.state import SessionState

WIDTH = 80


def summary_lines(
    state: SessionState, memo: str | None = None, *, width: int = WIDTH, unicode: bool = True
) -> list[str]:
    """What a person needs who never opens the memo. ``memo`` is the path it was written to."""
    f = facts_of(state)
    lines = [*_verdict(f), *(clean(line) for line in key_figures(f))]
    budget = state.budget or (f.result.budget if f.result else None)
    if budget is not None:
        lines += plots.budget_bars(budget, width, unicode, state.findings or (f.result.findings if f.result else ()))
    unanswered = state.unanswered or (f.result.cannot_answer if f.result else ())
    lines += [f"cannot answer: {clean(u.question)} ({clean(u.why)}); {clean(u.settle)}" for u in unanswered[:5]]
    if f.open_gates:
        lines.append(f"{f.standing}: " + ", ".join(f"{clean(g.gate)} {g.state}" for g in f.open_gates))
    lines.append(f"session {clean(state.id)}")
    if memo is not None:
        lines.append(f"memo {clean(memo)}")
    return plots.plain(lines, unicode)


def print_summary(
    state: SessionState, memo: str | None = None, *, stream: TextIO, width: int = WIDTH, unicode: bool | None = None
) -> None:
    """Write :func:`summary_lines` to ``stream``; ASCII where the stream's encoding has no block characters."""
    if unicode is None:
        unicode = (getattr(stream, "encoding", None) or "").lower().replace("-", "") in ("utf8", "utf8sig")
    text = "\n".join(summary_lines(state, memo, width=width, unicode=unicode)) + "\n"
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def _verdict(f: Facts) -> list[str]:
    v = f.verdict
    if v is None:
        why = f": interrupted, {clean(f.state.interrupted)}" if f.state.interrupted else ""
        return [f"no verdict yet{why}"]
    lines = [f"{STATUS.get(v.status, v.status)}: {clean(v.summary)}"]
    if v.status != "fault":
        return lines
    first = next(iter(f.material), None)
    said = deciding_figure(first) if first else ""
    lines.append(f"{clean(v.mechanism)}  {v.confidence}{f', {clean(said)}' if said else ''}  proved by {f.proof(v)}")
    lines += [f"where {clean(w.module)} {clean(w.op)}".rstrip() for w in v.where[:3]]
    if len(v.where) > 3:
        rest = len(v.where) - 3
        lines.append(f"      and {rest} more place{'s' * (rest > 1)}")
    lines.append(f"owner {clean(v.owner)}  {clean(f.state.owners.get(v.owner or '', ''))}".rstrip())
    for word, text in (("fix", v.fix), ("way back", v.rollback)):
        if text:
            lines.append(f"{word} {clean(text)}")
    return lines
