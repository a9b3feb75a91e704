"""What went wrong in a worker, as evidence."""

from __future__ import annotations

import signal as signals
from pathlib import Path
from typing import Literal

import msgspec

_CHILD = Path(__file__).parent / "child"

Kind = Literal["exception", "exit", "signal", "timeout", "memory", "launch", "protocol"]


class Fault(msgspec.Struct, frozen=True):
    """One failure of a worker. ``message`` is one printable line; the other texts are as the worker wrote them.

    ``kind``: ``exception`` the code raised; ``exit`` it ended its process (or asked to, by ``sys.exit``); ``signal``
    the process was killed; ``timeout`` no answer within the deadline; ``memory`` over the ceiling; ``launch`` the
    interpreter did not become a worker; ``protocol`` the message pipe was closed or held garbage.
    """

    kind: Kind
    message: str
    type: str = ""
    traceback: str = ""
    signal: str | None = None
    exit_code: int | None = None
    stdout_tail: str = ""
    stderr_tail: str = ""
    verb: str = ""
    seconds: float = 0.0
    label: str = ""

    @property
    def bad_input(self) -> bool:
        """The workload file names what is no builder or no inputs, or these gave what cannot be stepped: to be mended
        there, and no evidence of the model. An error that the user's own code raised is not of this kind."""
        return self.type == "LoadError" and not self.traceback


class WorkerFault(Exception):
    """A worker failed; ``fault`` says how. After kinds ``exception``, ``exit`` with a type and ``memory`` with a type
    (the code raised, and was caught) the replica still answers; otherwise it is gone (see ``Replica.alive``)."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class CallCancelled(Exception):
    """The caller's ``cancel`` event was set; the replica was killed, for its state is not known."""


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def python_stack(stderr: str) -> str:
    """The Python stack that ``faulthandler`` left on stderr when the process was ended by a signal, or ``""``.

    Our own frames, which called the user's code, are left out.
    """
    start = stderr.rfind("Fatal Python error:")
    if start < 0:
        return ""
    end = stderr.find("\n\nExtension modules:", start)
    lines = stderr[start : end if end > 0 else len(stderr)].strip().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(f'File "{_CHILD}'))


def gib(n: float) -> str:
    return f"{n / 2**30:.2f} GiB"
