"""``sparsetui memo SESSION``: the closure memo of a saved session, in the form that is asked for."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sparsetui.cli.common import check_target, fail, say
from sparsetui.session.state import SessionState


class Form(StrEnum):
    md = "md"
    html = "html"
    json = "json"
    chat = "chat"
    issue = "issue"


def memo(
    session: Annotated[str, typer.Argument(help="a session's id, or its folder")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="write to this file instead of stdout")] = None,
    form: Annotated[Form, typer.Option("--format", help="md, html, json, chat or issue")] = Form.md,
    redact: Annotated[bool, typer.Option("--redact", help="remove hosts, users and paths")] = False,
    sessions: Annotated[Path | None, typer.Option("--sessions", help="the folder of sessions")] = None,
) -> None:
    """The closure memo of a session. Headed NOT CLOSED unless every gate holds."""
    from sparsetui.session.errors import SessionError
    from sparsetui.session.files import write_whole
    from sparsetui.session.store import Store

    check_target("-o", output)
    try:
        store = Store(sessions)
        state = store.open(session).state()
        if not store.verify(session).ok:
            say("this session is damaged, and its memo rests on what is whole; see: sparsetui sessions verify")
        data = write_form(state, form, redact=redact)
        if output is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            write_whole(output, data)
            say(f"memo {output}")
    except SessionError as e:
        fail(e)


def write_form(state: SessionState, form: Form, *, redact: bool = False) -> bytes:
    """The memo of ``state`` as the bytes of one form."""
    from sparsetui.report import html, jsonout, memo, short

    if form is Form.json:
        return jsonout.session_json(state, redact=redact)
    renderer = {Form.md: memo.render, Form.html: html.render_html, Form.chat: short.chat, Form.issue: short.issue}[form]
    return renderer(state, redact=redact).encode()
