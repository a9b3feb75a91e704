"""Which tensors of a step are constants: nothing of the step made them, and the step writes nothing into them.

A tensor that no op of the step produced and that is no input existed before the step: it is a constant (a weight, a mask, a
cache), wherever the code keeps it. What an earlier step produced from its inputs (a hidden state, a gradient) is none, nor
is what the step itself writes to (a parameter that is trained, a running mean).
"""

from __future__ import annotations

from typing import Any, Dict, Hashable, List, Optional, Set, Tuple

import numpy as np
import torch

from . import identity, tensors

# in-place ops that leave the same values each time they run over the same constants, so that their target stays one
_REPEATABLE = {"copy_", "mul_", "masked_fill_", "fill_", "zero_", "set_", "clamp_", "relu_", "sign_", "abs_"}


class Constant:
    """What the census knows of one constant operand."""

    __slots__ = ("blank", "derived", "name", "number", "source", "tensor", "version", "zeros")

    def __init__(
        self, name: str, tensor: torch.Tensor, derived: str, blank: bool = False, source: Optional[int] = None
    ) -> None:
        self.name, self.tensor, self.derived = name, tensor, derived
        if source is None:
            part = tensors.bytes_by_part(tensor)
            source = part["values"] + part["indices"]
        self.source = source  # bytes that it came out of
        self.number = 0  # tells those without a name apart
        self.blank = blank  # made of numbers in this step (zeros, full): it says nothing of what it will hold
        self.zeros: Dict[Any, float] = {}  # by view: slices of one storage have zero fractions of their own
        self.version = tensors.version(tensor)


class Tracker:
    """Which storages are constant, derived from constants, or fresh in this step.

    ``names`` maps storage keys, and identities where a storage holds several tensors, to names.
    """

    def __init__(self, names: Dict[Hashable, str]) -> None:
        self.names = names
        self.fresh: Dict[int, Any] = {}  # storage key -> storage, kept alive so that keys are not reused in the step
        self.derived: Dict[int, Constant] = {}
        self.inputs: Dict[int, Any] = {}
        self.constants: Dict[Hashable, Constant] = {}  # by storage, or by the storages of all parts of a sparse tensor
        self.mutated: Dict[int, int] = {}  # storages of constants that the step writes to (optimizers, caches)
        self.targets: Dict[int, torch.Tensor] = {}  # one tensor of each of those
        self._sparse_of: Dict[int, Constant] = {}  # storage of its values -> sparse constant
        self._arrays: Set[int] = set()  # where NumPy inputs lie: the step wraps them in tensors of no origin
        self._past: Dict[int, Any] = {}  # what an earlier step made of its inputs, while it lives

    def begin(self, inputs: Any) -> None:
        self._past = {k: r for k, r in self._past.items() if not r.expired()}
        self._past.update({k: identity.weak(s) for k, s in self.fresh.items() if k not in self.derived})
        self.fresh.clear()
        self.derived.clear()
        self.inputs = {k: t for t in tensors.flatten(inputs) for k in identity.storages(t)}
        self._arrays = {int(a.ctypes.data) for a in inputs if isinstance(a, np.ndarray)}

    def settle(self) -> None:
        """Forget the constants seen so far: those of the steady state show up again."""
        self.constants.clear()
        self._sparse_of.clear()

    def of(self, t: torch.Tensor) -> Optional[Constant]:
        """The constant behind ``t``, or None for activations, inputs and states."""
        keys = identity.storages(t)
        if not keys:
            return None
        derived: Optional[Constant] = None
        for k in keys:
            if k in self.derived:
                derived = derived or self.derived[k]
            elif k in self.fresh or k in self.inputs or k in self.mutated or self._living(k):
                return None
        if derived is not None:
            return derived
        ident: Hashable = keys[0] if t.layout == torch.strided else tuple(keys)
        c = self.constants.get(ident)
        if c is None and t.layout == torch.strided:
            c = self._sparse_of.get(keys[0])
        if c is None:
            if t.layout == torch.strided and self._arrays and t.untyped_storage().data_ptr() in self._arrays:
                return None
            c = self.constants[ident] = Constant(self.name(t, keys[0]), t, "")
            c.number = len(self.constants)
            if t.layout != torch.strided:
                self.constants.pop(keys[0], None)  # first seen through its values; the sparse tensor says more
                self._sparse_of.setdefault(keys[0], c)
        return c

    def name(self, t: torch.Tensor, k: int) -> str:
        return self.names.get(identity.identity(t)) or self.names.get(k, "")

    def _living(self, k: int) -> bool:
        r = self._past.get(k)
        return r is not None and not r.expired()

    def is_mutated(self, c: Constant) -> bool:
        return any(k in self.mutated for k in identity.storages(c.tensor))

    def produced(self, name: str, outs: List[torch.Tensor], ins: List[torch.Tensor], consts: List[Optional[Constant]],
                 random: bool, written: List[torch.Tensor]) -> Optional[Constant]:  # fmt: skip
        """Record what an op made and wrote; returns the origin if its results depend on constants only."""
        if name.endswith("lift_fresh"):
            # torch.tensor(…) in the step, new each time: a number is taken for a literal, an array may be data
            ins, consts, random = [], [], random or any(t.dim() > 0 for t in outs)
        all_const = bool(ins) and all(c is not None for c in consts) and not random
        origin: Optional[Constant] = None
        if all_const:
            origin = _origin([c for c in consts if c is not None], written)
        self._wrote(name, written, len(ins), all_const)
        in_keys = {k for t in ins for k in identity.storages(t)}
        for t in outs:
            made: Optional[Constant] = None
            if origin is not None:
                made = _out_of(origin, t, name)
            elif not ins and not random:
                made = Constant("", t, name, blank=True)  # a factory: constant until something is written into it
            for k, storage in _storages(t):
                if k in in_keys:
                    continue  # a view: it shares its base's standing
                self.fresh[k] = storage
                if made is not None:
                    self.derived[k] = made
                else:
                    self.derived.pop(k, None)
        if origin is not None:
            self._filled(name, written, origin)
        return origin

    def _filled(self, name: str, written: List[torch.Tensor], origin: Constant) -> None:
        """A buffer that this step made and now fills from constants comes out of those (unpacking into zeros)."""
        for t in written:
            for k in identity.storages(t):
                if k in self.fresh and k in self.derived and origin is not self.derived[k]:
                    self.derived[k] = _out_of(origin, t, name)

    def _wrote(self, name: str, written: List[torch.Tensor], operands: int, all_const: bool) -> None:
        s = name.rsplit("::", 1)[-1]
        # a product with a number, or a counter's increment, moves on at each step though its operands are constants
        lasting = all_const and s in _REPEATABLE and not (s == "mul_" and operands < 2)
        for t in written:
            for k, storage in _storages(t):
                held = k not in self.fresh and k not in self.inputs
                if held and not lasting:
                    self.mutated[k] = self.mutated.get(k, 0) + 1
                    self.targets.setdefault(k, t)
                if not all_const:
                    self.derived.pop(k, None)
                    self.fresh[k] = storage


def _out_of(origin: Constant, t: torch.Tensor, name: str) -> Constant:
    return Constant(origin.name, t, (origin.derived + ">" if origin.derived else "") + name, source=origin.source)


def _origin(consts: List[Constant], written: List[torch.Tensor]) -> Constant:
    """The constant that a result is a form of: the largest, but no blank buffer, and of what is written into one the values."""
    told = [c for c in consts if not c.blank] or consts
    if written and written[0].is_floating_point():
        told = [c for c in told if c.tensor.is_floating_point()] or told
    return max(told, key=lambda c: c.tensor.numel())


def _storages(t: torch.Tensor) -> List[Tuple[int, Any]]:
    out: List[Tuple[int, Any]] = []
    for p in tensors.parts(t).values():
        k = tensors.key(p)
        if k is not None:
            out.append((k, p.untyped_storage()))
    return out
