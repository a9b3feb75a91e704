"""What a probe is given: the built callable, its inputs, and a way to report progress."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple


class Context:
    """The world of one replica. The verb ``build`` fills ``fn`` and ``inputs``; before it they are ``None`` and ``[]``.

    ``spec`` is the variant as the tool sent it: ``entry``, ``folder``, ``inputs``, ``threads``, ``role`` (``failing``
    or ``comparator``) and optionally ``derive``. ``inputs`` is a list of argument tuples. ``emit`` sends a dict as a
    progress message. ``scratch`` is an existing folder for bulk ``.npy`` files. ``state`` is the probes' own between
    verbs; ``build`` puts ``state["resolve"]`` there, which turns another entry of the workload into its callable.
    """

    def __init__(self, spec: Dict[str, Any], scratch: str, emit: Callable[[Dict[str, Any]], None]) -> None:
        self.spec = spec
        self.scratch = scratch
        self.emit = emit
        self.fn: Any = None
        self.inputs: List[Tuple[Any, ...]] = []
        self.state: Dict[str, Any] = {}
