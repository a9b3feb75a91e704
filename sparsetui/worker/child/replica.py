"""A replica: one forked process that runs the user's code, verb by verb, until it is told to end.

The user's code may print, close descriptors, change signal handlers, fork, or raise anything at all. Whatever it raises
becomes an answer and the replica stays usable; whatever kills the process is seen by the server.
"""

import atexit
import faulthandler
import fcntl
import importlib
import os
import random
import signal
import socket
import sys
import traceback
import types
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from sparsetui.worker.child import limits, wire
from sparsetui.worker.child.load import LoadError

_HIGH = 200  # below this number user code may close descriptors at will
_MOST_TEXT = 16_000
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_keep_main: List[Any] = []

# Parts of torch that take seconds to import and start neither a thread nor a process, so that a server may do it once for all.
SLOW_IMPORTS = ("torch._dynamo", "torch._inductor.compile_fx")

Verb = Callable[[Any, Dict[str, Any]], Dict[str, Any]]


def main(message: Dict[str, Any], fds: List[int], server: int, threads_now: Optional[int]) -> NoReturn:
    """Become a replica: ``fds`` are its message socket and the pipes for its stdout and stderr."""
    os.setsid()
    limits.die_with_parent(server, signal.SIGKILL)
    limits.adopt_orphans()  # the server learns of a daemon only when we end, and then knows whose it was
    channel = wire.Channel(_move_away(fds))
    _own_process(message)
    limits.apply(message.get("memory_bytes"), threads_now)
    limits.settle_heap()
    spec = message["spec"]
    threads = spec.get("threads")
    if threads:
        import torch

        torch.set_num_threads(int(threads))
    from sparsetui.probes.context import Context

    call: Dict[str, Any] = {}
    context = Context(
        spec, message["scratch"], lambda progress: channel.send({"call": call["id"], "progress": progress})
    )
    while True:
        request = channel.receive()
        if request is None or request["verb"] == "exit":
            _leave()
        call["id"] = request["call"]
        channel.send({"call": request["call"], **_answer(context, request, channel)})


def _move_away(fds: List[int]) -> socket.socket:
    messages, out, err = fds
    high = _high(messages)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for fd in {messages, out, err, null}:
        if fd > 2:
            os.close(fd)
    return socket.socket(fileno=high)


def _high(fd: int) -> int:
    """A copy of ``fd`` out of the reach of code that closes low descriptors."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # this user may open fewer than that
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _own_process(message: Dict[str, Any]) -> None:
    """Look like a process that was started by itself: handlers, ``__main__``, ``argv``."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # a segfault, or our abort at a deadline, then leaves its Python stack on stderr, even if the code has closed that
    faulthandler.enable(file=_high(2), all_threads=True)
    _keep_main.append(sys.modules["__main__"])
    sys.modules["__main__"] = types.ModuleType("__main__")  # multiprocessing's spawn would run our bootstrap again
    sys.argv = [str(message["spec"].get("entry", ""))]
    atexit._clear()  # what libraries registered in the server is not ours to run, and takes 70 ms
    helpers = sys.modules.get("multiprocessing.util")
    if helpers is not None:  # but this one ends worker processes and frees shared memory
        atexit.register(helpers._exit_function)


def seed_all() -> None:
    """Seed ``random``, NumPy and torch with 0, so that unseeded code draws the same numbers in every replica."""
    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def _leave() -> NoReturn:
    """End after the user's exit handlers, but without waiting for threads that never end."""
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _answer(context: Any, request: Dict[str, Any], channel: wire.Channel) -> Dict[str, Any]:
    try:
        verb = find_verb(str(request["verb"]), context.spec.get("verbs"))
        answer = {"ok": verb(context, request.get("args") or {})}
        wire.encode(answer)  # what cannot be sent is the verb's fault and is told as such
        return answer
    except BaseException as why:
        if not channel.at_home():
            os._exit(1)
        return {"error": describe(why)}
    finally:
        if not channel.at_home():
            os._exit(0)
        _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # user code may have closed or replaced it
            pass


def find_verb(name: str, table: Optional[str] = None) -> Verb:
    """The function for a verb: our own, or of the probes, or of the ``table`` (``module:NAME``) that the spec names."""
    from sparsetui.worker.child.build import build

    own: Dict[str, Verb] = {"ping": _ping, "build": build, "ptrace": _ptrace, "imported": _imported}
    if name in own:
        return own[name]
    module, _, attribute = (table or "sparsetui.probes.verbs:VERBS").partition(":")
    verbs = getattr(importlib.import_module(module), attribute)
    if name not in verbs:
        raise LookupError("no verb %r; known are %s" % (name, ", ".join(sorted([*own, *verbs]))))
    found: Verb = verbs[name]
    return found


def _ping(context: Any, args: Dict[str, Any]) -> Dict[str, Any]:
    return {"pid": os.getpid(), "rss_bytes": limits.rss_bytes(), "built": context.fn is not None}


def _imported(context: Any, args: Dict[str, Any]) -> Dict[str, Any]:
    """Which of the slow parts of torch the user's code has come to import."""
    return {"modules": [name for name in SLOW_IMPORTS if name in sys.modules]}


def _ptrace(context: Any, args: Dict[str, Any]) -> Dict[str, Any]:
    return {"yama": limits.let_others_trace(bool(args.get("allow")))}


def describe(why: BaseException) -> Dict[str, Any]:
    """An exception as plain data, with the frames of the user's code only."""
    kind = "exception"
    code: Optional[int] = None
    message = _text_of(why)
    if isinstance(why, SystemExit):
        kind = "exit"
        code = why.code if isinstance(why.code, int) else (0 if why.code is None else 1)
    elif _out_of_memory(why, message):
        kind = "memory"
    trace, place = _user_traceback(why)
    return {"kind": kind, "type": type(why).__name__, "message": message[:_MOST_TEXT], "traceback": trace,
            "place": place, "exit_code": code}  # fmt: skip


def _text_of(why: BaseException) -> str:
    try:
        return str(why)
    except BaseException:
        return "(its text cannot be had: __str__ raised)"


def _out_of_memory(why: BaseException, message: str) -> bool:
    if isinstance(why, MemoryError):
        return True
    text = message.lower()
    return isinstance(why, (RuntimeError, OSError)) and (
        "can't allocate memory" in text or "cannot allocate memory" in text or "bad_alloc" in text
        or "not enough memory" in text
    )  # fmt: skip


def _user_traceback(why: BaseException) -> Tuple[str, str]:
    """``(traceback, place)``: the text without our own leading frames, and ``file:line function`` of the last one."""
    try:
        trace = traceback.TracebackException(type(why), why, why.__traceback__, limit=-200)
        frames = list(trace.stack)
        while frames and frames[0].filename.startswith(_PACKAGE + os.sep):
            del frames[0]
        trace.stack = traceback.StackSummary.from_list(frames)
        if not frames and isinstance(why, LoadError):
            return "", ""  # its one line says it all
        text = "".join(trace.format())
        if len(text) > _MOST_TEXT:
            text = text[: _MOST_TEXT // 2] + "\n[...]\n" + text[-_MOST_TEXT // 2 :]
        outside = [f for f in frames if not f.filename.startswith("<frozen")]
        last = outside[-1] if outside else None
        return text, "%s:%s %s" % (last.filename, last.lineno, last.name) if last else ""
    except BaseException:  # formatting runs the exception's own code
        return "", ""
