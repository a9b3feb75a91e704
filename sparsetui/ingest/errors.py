"""What is wrong with a file from outside."""

from __future__ import annotations


class IngestError(ValueError):
    """A file that cannot serve as evidence. Its text is one line: file, place, what is wrong, what is accepted."""
