"""The closure memo: every section of a session, in the order in which a reviewer asks."""

from __future__ import annotations

from sparsetui.report import cause, history, incident, release, sections
from sparsetui.report.document import Block, Document, Table
from sparsetui.report.facts import Facts, facts_of
from sparsetui.report.markdown import to_markdown
from sparsetui.report.redact import redacted
from sparsetui.session.state import SessionState


def render(state: SessionState, *, redact: bool = False) -> str:
    """The memo of ``state`` in GitHub-flavoured Markdown.

    Headed ``NOT CLOSED`` unless all gates hold. Each claim names the one artifact that proves it. ``redact`` removes
    hosts, users and paths. The same state gives the same bytes on any machine.
    """
    return to_markdown(document(state, redact=redact))


def document(state: SessionState, *, redact: bool = False) -> Document:
    """The memo before it is written in any form."""
    f = facts_of(redacted(state) if redact else state)
    title = f"{f.standing}: {f.state.title or f.state.workload or f.state.id or 'session'}"
    blocks = [release.closed_line(f), *_body(f)]
    return Document(title, tuple(b for b in blocks if not isinstance(b, Table) or b.rows))


def _body(f: Facts) -> list[Block]:
    order = (
        incident.verdict_section,
        incident.incident_section,
        incident.lock_section,
        incident.evidence_section,
        cause.mechanism_section,
        cause.budget_section,
        cause.reality_section,
        sections.matrix_section,
        sections.lens_section,
        sections.replay_section,
        sections.other_sections,
        release.owners_section,
        release.validation_section,
        release.rollback_section,
        release.gates_section,
        history.playbook_section,
        history.timeline_section,
        history.unanswered_section,
    )
    return [block for section in order for block in section(f)]
