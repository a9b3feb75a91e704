"""A playbook in words, for a terminal: what each step asks, runs, looks at, and where it leads."""

from __future__ import annotations

from sparsetui.playbook.spec import Condition, FactRef, Playbook, Target


def outline(book: Playbook) -> list[str]:
    lines = [f"{book.id}: {book.title}", f"question: {book.question}"]
    lines += [f"symptom: {s}" for s in book.symptoms]
    for step in book.steps:
        lines += ["", f"{step.id} [{step.stage}] {step.ask}", f"  owner: {step.owner}"]
        if step.run:
            lines.append(f"  run: {', '.join(step.run)}")
        if step.look:
            lines.append(f"  look: {step.look}")
        for branch in step.branches:
            because = f" ({branch.because})" if branch.because else ""
            lines.append(f"  if {condition_words(branch.when)}{because} -> {_words(branch.target)}")
        if step.unknown is not None:
            lines.append(f"  if that was not measured -> {_words(step.unknown)}")
        lines.append(f"  otherwise -> {_words(step.otherwise)}")
    return lines


def condition_words(c: Condition) -> str:
    """A condition as it would be said, without figures."""
    if c.combine == "not":
        return f"not ({condition_words(c.parts[0])})"
    if c.combine:
        word = " and " if c.combine == "all" else " or "
        return word.join(f"({condition_words(p)})" if p.combine else condition_words(p) for p in c.parts)
    if c.op in ("known", "unknown"):
        return f"{c.fact} is {c.op}"
    if isinstance(c.value, FactRef):
        return f"{c.fact} {c.op} {c.value.fact}"
    values = c.value if isinstance(c.value, tuple) else (c.value,)
    said = ", ".join("yes" if v is True else "no" if v is False else str(v) for v in values)
    return f"{c.fact} {c.op} {said}"


def _words(target: Target) -> str:
    if target.end is None:
        return target.go
    end = target.end
    name = end.mechanism or end.kind.replace("_", " ")
    settle = f" Settle it: {end.settle}" if end.settle else ""
    return f"{name}: {end.say} Owner: {end.owner}.{settle}"
