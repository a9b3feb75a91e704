"""Payloads as the passes return them, cut down to what the rules read, and cases made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sparsetui.diagnosis.case import Case, Declared, Trial
from sparsetui.diagnosis.stats import ArmRound, Block, Round, closure, compare, ratio_quantiles
from sparsetui.evidence.records import Difference, Lock, Number, PathShare, Sampler, TimeTable

Payload = dict[str, Any]


def operand(layout: str = "strided", shape: tuple[int, ...] = (64, 64), dtype: str = "float32", **more: Any) -> Payload:
    return {"layout": layout, "dtype": dtype, "shape": list(shape), "const": False, "name": "", "derived": "", **more}


def op(name: str, family: str, *operands: Payload, out: Payload | None = None, **more: Any) -> Payload:
    """One census row: ``calls`` in all steps, ``ns`` over all of them."""
    made = out if out is not None else operand()
    return {"op": f"aten::{name}", "family": family, "module": "layer", "place": "m.py:1 f", "backward": False, "calls": 1,
            "ns": 800_000, "max_ns": 0, "operands": list(operands), "outputs": [made], "out_bytes": 4 * int(np.prod(made["shape"])),
            "constant": False, "origin": "", "sparse_at": None, "weight": None, "path": "elementwise", **more}  # fmt: skip


def weight(layout: str = "csr", zeros: float = 0.9, **more: Any) -> Payload:
    return {"name": "w", "derived": "", "zeros": zeros, "nnz": 100, "layout": layout, "dtype": "float32", "shape": [64, 64],
            "index_dtype": "int32" if layout != "strided" else None, "bytes": {"values": 400, "indices": 400, "dense": 16384},
            "eligible": True, "const": True, **more}  # fmt: skip


_PATHS = {"strided": "dense", "csr": "sparse-csr", "csc": "sparse-csc", "coo": "sparse-coo", "bsr": "sparse-bsr"}


def product(left: str = "csr", right: str = "strided", w: Payload | None = None, **more: Any) -> Payload:
    sides = [operand(left), operand(right)]
    at = 0 if left != "strided" else 1 if right != "strided" else None
    used = w if w is not None else weight(left if at != 1 else right)
    path = _PATHS[left] if at != 1 else "sparse-csr-rhs" if right in ("csc", "csr") else _PATHS[right]
    return op("mm", "product", *sides, sparse_at=at, weight=used, weight_at=at or 0, path=path,
              sides=[dict(s, strides=[64, 1]) for s in sides], **more)  # fmt: skip


def census(*rows: Payload, failed: tuple[Payload, ...] = (), constants: tuple[Payload, ...] = ()) -> Payload:
    return {"rows": list(rows), "steps": 1, "calls": len(rows), "failed": list(failed), "constants": list(constants),
            "observer": {"plain_ms": 1.0}}  # fmt: skip


def stopped(error: str, ok: bool | None = None, **more: Any) -> Case:
    """A step that ends in a sparse product which raises; ``ok``: whether a tiny twin of that product ran."""
    raised = dict(op("mm", "product", operand("csr"), operand()), error=error)
    extra: dict[tuple[str, str], Payload] = {("autopsy", "failing"): {"failed": [raised]}}
    if ok is not None:
        extra[("support", "failing")] = {"products": [{"layout": "csr", "dtype": "float32", "ok": ok}]}
    return Case(extra=extra, **more)


def hidden_conversion(backward: bool) -> Case:
    """A conversion that only the profile sees, inside a product."""
    row = {"product": "aten::mm", "op": "aten::to_sparse_csr", "calls": 1, "total_ms": 0.5, "backward": backward}
    return Case(profile={"failing": profile(hidden=[row])})


def copied_in_product(*shape: int) -> Case:
    """A product of a weight with int64 indices, in which something of this shape is copied."""
    row = {"product": "aten::mm", "shape": list(shape), "calls": 2, "total_ms": 0.3}
    return seen(
        product(w=weight(index_dtype="int64")),
        inventory={"failing": held(tensor(index_dtype="int64"))},
        profile={"failing": profile(copies_in_products=[row])},
    )


def tensor(layout: str = "csr", zeros: float = 0.9, **more: Any) -> Payload:
    """A row of the inventory."""
    sparse = {} if layout == "strided" else {
        "stored": 400, "stored_zeros": 0, "stored_tiny": 0, "index_dtype": "int32", "nnz": 400, "invalid": []}  # fmt: skip
    return {"name": "w", "layout": layout, "dtype": "float32", "shape": [64, 64], "numel": 4096, "zeros": zeros,
            "bytes": {"values": 1600, "indices": 1600 if sparse else 0, "dense": 16384}, **sparse, **more}  # fmt: skip


def held(*tensors: Payload, **more: Any) -> Payload:
    return {"tensors": list(tensors), "modules": ["layer"], **more}


def profile(**more: Any) -> Payload:
    return {"steps": 1, "rows": [], "hidden": [], "copies_in_products": [], "alloc": {}, "wall_ms": 1.0, "in_ops_ms": 0.9,
            "best_ms": 1.0, "op_us": 2.0, "observer": {"plain_ms": 1.0}, **more}  # fmt: skip


def locked(threads: int, usable: str = "2", **tags: str) -> Payload:
    return {"tags": {"threads": str(threads), "usable_cores": usable, **tags}}


def differs(tag: str, *, declared: bool) -> Lock:
    return Lock(match=declared, differs=(Difference(tag, "a", "b", declared),))


def rounds(ratio: float, slow_every: int = 0) -> list[Round]:
    """Eight process pairs, each step about 1 ms; every ``slow_every``-th step of the failing one takes five times as long."""
    rng = np.random.default_rng(3)

    def block(variant: str, i: int, j: int, ms: float) -> Block:
        times = ms * rng.lognormal(0, 0.01, 200)
        if slow_every and variant == "failing":
            times[::slow_every] *= 5
        return Block(variant, f"{variant}{i}", j, tuple(times))

    return [Round([block("failing", i, j, ratio) for j in range(4)], [block("comparator", i, j, 1.0) for j in range(4)])
            for i in range(8)]  # fmt: skip


def timed(ratio: float, **more: Any) -> Case:
    taken = rounds(ratio, more.pop("slow_every", 0))
    compared = compare(taken)
    return Case(comparison=compared, tails=ratio_quantiles(taken, floor=compared.floor.value or 0.0), **more)


def seen(*rows: Payload, **more: Any) -> Case:
    """A case whose failing variant ran these ops."""
    return Case(census={"failing": census(*rows)}, **more)


def outputs(**more: Any) -> Payload:
    return {"finite": True, "repeats": True, "repeat_error": 0.0, **more}


def settled(cold: float, step: float = 1.0) -> Payload:
    return {"cold_ms": cold, "step_ms": step}


def samples(barrier: float, sampler: str = "perf") -> Mapping[str, TimeTable]:
    table = TimeTable(paths=(PathShare("barrier", Number(barrier)), PathShare("sparse-csr", Number(1 - barrier))),
                      samplers=(Sampler(sampler, 99.0, 300),))  # fmt: skip
    return {"failing": table}


def pair(probe: str, failing: Payload, comparator: Payload) -> dict[tuple[str, str], Payload]:
    return {(probe, "failing"): failing, (probe, "comparator"): comparator}


def drifted(value: float, **more: Any) -> Case:
    return Case(declared=Declared(max_drift=0.01), drift=Number(value, n=1), drift_metric="accuracy", **more)


def masked(**more: Any) -> Payload:
    """A weight-sized multiplication of constants."""
    return op(
        "mul",
        "pointwise",
        operand(const=True, name="w"),
        operand(const=True, name="mask"),
        constant=True,
        origin="w",
        **more,
    )


def scores(hides: bool = True, soft: str = "_softmax") -> list[Payload]:
    square = operand(shape=(4, 64, 64))
    made = op("bmm", "product", operand(shape=(4, 64, 16)), operand(shape=(4, 16, 64)), out=square)
    masked = op("add", "pointwise", square, operand(shape=(64, 64)), out=square, hides=hides)
    return [made, masked, op(soft, "other", square, out=square)]


def selected(how: str) -> Payload:
    """What is kept of a weight, taken anew from it."""
    return op(how, "copy", operand(const=True, name="w"), constant=True, origin="w", out=operand(shape=(64, 64)))


def widened(dtype: str) -> Payload:
    return op("_to_copy", "copy", operand(const=True, name="w", dtype=dtype), constant=True, origin="w",
              out=operand(shape=(64, 64)), out_bytes=16384)  # fmt: skip


def looked_up(table: int) -> Payload:
    """A weight that is looked up by its codes in a table of values."""
    values, codes = operand(const=True, name="w", shape=(table,)), operand(const=True, name="c", dtype="int32")
    return op("index", "copy", values, codes, constant=True, origin="w", out=operand(shape=(64, 64)), out_bytes=16384)


def flat(n: int = 48) -> list[float]:
    return [1e9] * n


def rising(by: float, n: int = 48) -> list[float]:
    return [1e9 + by * i for i in range(n)]


SMALL = op("add", "pointwise", operand(shape=(8,)), out=operand(shape=(8,)), calls=300, ns=900_000)
# three hundred products of a few rows each, with hardly any and with many non-zeros
SLICES = product(w=weight(shape=[8, 1024], bytes={"values": 1600, "indices": 1700, "dense": 32768}),
                 out=operand(shape=(8, 8)), calls=300, ns=900_000)  # fmt: skip
FULL_SLICES = product(w=weight(shape=[512, 1024], bytes={"values": 800_000, "indices": 800_000, "dense": 2_097_152}),
                      out=operand(shape=(512, 8)), calls=300, ns=90_000_000)  # fmt: skip
LARGE = op("add", "pointwise", operand(shape=(512, 512)), out=operand(shape=(512, 512)), calls=10, ns=900_000)
SAME_ZEROS = {"failing": held(tensor("strided", 0.9)), "comparator": held(tensor("strided", 0.9))}
OTHER_ZEROS = {"failing": held(tensor("strided", 0.9)), "comparator": held(tensor("strided", 0.5))}
PRUNED = Declared(sparsity=0.9, targets=("layer",))
LAYER: dict[str, Any] = {"name": "layer.weight"}


class Sample(NamedTuple):
    """``present`` makes the mechanism a suspect of the failing variant, ``near`` must not."""

    mechanism: str
    present: Callable[[], Case]
    near: Callable[[], Case]
    why: str  # what is different in the near miss


def trial(intervention: str, closed: float, case: Case, **check: Any) -> dict[tuple[str, str], Trial]:
    """One intervention on the failing variant of ``case``, under which a step takes ``closed`` of its control's time."""
    rng = np.random.default_rng(5)

    def block(arm: str, i: int, ms: float) -> Block:
        return Block(arm, "failing-first", i, tuple(ms * rng.lognormal(0, 0.005, 60)))

    cycles = [ArmRound(off=[block("off", 0, 1.0), block("off", 5, 1.0)], control=[block("c", 1, 1.01), block("c", 4, 1.01)],
                       intervened=[block("on", 2, 1.01 * closed), block("on", 3, 1.01 * closed)]) for _ in range(8)]  # fmt: skip
    assert case.comparison is not None
    made = closure(cycles, case.comparison, question=case.question, ideal_ratio=case.ideal_ratio)
    return {
        (intervention, "failing"): Trial(
            intervention, made, {"applied": 3, "equal": True, **check}, (f"E-{intervention}",)
        )
    }
