"""The engine of dispatch rewrites: which op is caught, and what runs in its place."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from .. import identity, optable
from ..context import Context
from ..mode import Mode
from ..outputs import run_outputs
from ..step import Stepper

# (func, args, kwargs, active) -> the op's result; NotImplemented leaves the op alone
Handler = Callable[[Any, Any, Dict[str, Any], bool], Any]
Match = Callable[[str, Any], Optional[Handler]]


class Prepared:
    """One intervention made ready in one replica: its handlers with their twins, and what they were applied to."""

    def __init__(self) -> None:
        self.applied = 0
        self.where: Set[str] = set()
        self.notes: List[str] = []
        self.why = ""  # why it does not apply here, where that is known
        self.seen = 0  # ops that passed the mode, and how many of them were not run, nor any other in their place
        self.skipped = 0
        self.reach = 1.0  # the share of its mechanism that it removes: what takes it all away has 1

    def arm(self, active: bool) -> ContextManager[Any]:
        raise NotImplementedError  # pragma: no cover - each kind of intervention brings its own

    def begin(self) -> None:
        """Called before each step, outside the timed part."""

    def calls(self, run: Stepper) -> Tuple[Callable[[int], Any], int]:
        """What the clock calls with 0, 1, 2 … under the arm that was entered, and how many inputs such a call counts as."""
        return run, 1

    def outputs(self, ctx: Context, count: int) -> List[List[torch.Tensor]]:
        """The outputs of the first ``count`` inputs under the arm that was entered."""
        return run_outputs(ctx, count, self.begin)


class Rewrites(Prepared):
    """Rewrites by op. ``matches`` are asked once per op overload, in order, for a handler; ``writers`` for ops that write
    into an operand, whose handlers may leave out a write that changes nothing."""

    def __init__(self, matches: List[Match], writers: Sequence[Match] = ()) -> None:
        super().__init__()
        self._matches, self._writers = matches, writers
        self._table: Dict[int, Tuple[Any, Optional[Handler], bool]] = {}  # by id: hashing an op takes longer than it
        self.each_step: List[Callable[[], None]] = []
        self.on_write: List[Callable[[int], None]] = []  # told the key of each storage that the step writes to
        self.contiguous = False  # whether results have to be laid out as the original op would

    def handler(self, func: Any) -> Tuple[Optional[Handler], bool]:
        """The handler of an op, if any, and whether the op may write into its operands."""
        known = self._table.get(id(func))
        if known is None:
            name = optable.base_name(func)
            writes = bool(func._schema.is_mutable) or identity.hides_writes(name)
            asked = self._writers if writes else self._matches
            found = next((h for h in (m(name, func) for m in asked) if h is not None), None)
            known = self._table[id(func)] = (func, found, writes)
        return known[1], known[2]

    def wrote(self, func: Any, args: Any, kwargs: Dict[str, Any]) -> None:
        for t in identity.written(func, args, kwargs):
            for k in identity.storages(t):
                for tell in self.on_write:
                    tell(k)

    def begin(self) -> None:
        for f in self.each_step:
            f()

    @contextlib.contextmanager
    def arm(self, active: bool) -> Iterator[Any]:
        with _Mode(self, active):
            yield self


class _Mode(Mode):  # type: ignore[no-untyped-call]
    def __init__(self, rewrites: Rewrites, active: bool) -> None:
        super().__init__()
        self._rewrites, self._handler, self._active = rewrites, rewrites.handler, active

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._rewrites.seen += 1
        h, writes = self._handler(func)
        if h is not None:
            out = h(func, args, kwargs, self._active)
            if out is not NotImplemented:
                return out
        if writes:
            self._rewrites.wrote(func, args, kwargs)
        return func(*args, **kwargs)


class Setting(Prepared):
    """An intervention that is a setting of the runtime: ``enter(active)`` is a context manager."""

    def __init__(self, enter: Callable[[bool], ContextManager[Any]]) -> None:
        super().__init__()
        self._enter = enter

    @contextlib.contextmanager
    def arm(self, active: bool) -> Iterator[Any]:
        with self._enter(active):
            if active:
                self.applied += 1
            yield self


class Intervention:
    """``id``, what it does in words, and how it is made ready in a replica."""

    def __init__(self, id: str, title: str, prepare: Callable[[Context], Prepared]) -> None:
        self.id, self.title, self.prepare = id, title, prepare
