"""Every mechanism: evidence that makes it a suspect, and evidence that nearly does and must not.

Pure: payloads are dictionaries as the passes return them, cut down to what the rules read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from sparsetui.diagnosis.case import Case, Declared
from sparsetui.diagnosis.catalogue import all_mechanisms, by_id
from sparsetui.diagnosis.stats import Block, Round, compare, ratio_quantiles
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


SAMPLES = [
    Sample(
        "ingress.lock-mismatch",
        lambda: Case(lock=differs("env.MKL_CBWR", declared=False)),
        lambda: Case(lock=differs("env.MKL_CBWR", declared=True)),
        "the difference was declared",
    ),
    Sample(
        "ingress.mask-dropped",
        lambda: Case(
            build={"failing": {"loads": [{"missing": [], "unexpected": ["w_mask"]}]}},
            inventory={"failing": held(tensor("strided", 0.0))},
            declared=Declared(sparsity=0.9),
        ),
        lambda: Case(
            build={"failing": {"loads": [{"missing": [], "unexpected": ["w_mask"]}]}},
            inventory={"failing": held(tensor("strided", 0.9))},
            declared=Declared(sparsity=0.9),
        ),
        "keys did not match, but the zeros are there",
    ),
    Sample(
        "ingress.coverage-gap",
        lambda: Case(inventory={"failing": held(tensor("strided", 0.1, **LAYER))}, declared=PRUNED),
        lambda: Case(inventory={"failing": held(tensor("strided", 0.89, **LAYER))}, declared=PRUNED),
        "within the slack of the declared sparsity",
    ),
    Sample(
        "ingress.coverage-gap",
        lambda: Case(inventory={"failing": held(tensor(**LAYER))}, declared=Declared(targets=("encoder.*",))),
        lambda: Case(inventory={"failing": held(tensor(**LAYER))}, declared=Declared(targets=("lay*",))),
        "the target resolves",
    ),
    Sample(
        "ingress.sparsity-decayed",
        lambda: Case(inventory={"failing": held(tensor("strided", 0.2)), "comparator": held(tensor("strided", 0.9))}),
        lambda: Case(inventory={"failing": held(tensor("strided", 0.88)), "comparator": held(tensor("strided", 0.9))}),
        "no more was lost than the slack",
    ),
    Sample(
        "ingress.stored-zeros",
        lambda: Case(inventory={"failing": held(tensor(stored_zeros=100))}),
        lambda: Case(inventory={"failing": held(tensor("bsr", stored_zeros=100, fill=0.75))}),
        "blocks have to store their zeros",
    ),
    Sample(
        "ingress.pattern-mismatch",
        lambda: Case(
            inventory={"failing": held(tensor("strided", 0.5, nm={"2:4": [0.4, 1.0]}))},
            declared=Declared(pattern=(2, 4)),
        ),
        lambda: Case(
            inventory={"failing": held(tensor("strided", 0.5, nm={"2:4": [1.0, 0.4]}))},
            declared=Declared(pattern=(2, 4)),
        ),
        "it fits along the axis that is summed over",
    ),
    Sample(
        "ingress.pattern-mismatch",
        lambda: Case(inventory={"failing": held(tensor("bsr", fill=0.1))}),
        lambda: Case(inventory={"failing": held(tensor("bsr", fill=0.8))}),
        "blocks are mostly full",
    ),
    Sample(
        "ingress.invalid-indices",
        lambda: Case(inventory={"failing": held(tensor(invalid=["row pointers are not monotone"]))}),
        lambda: Case(inventory={"failing": held(tensor(invalid=[]))}),
        "nothing was found",
    ),
    Sample(
        "ingress.index-overhead",
        lambda: Case(
            inventory={"failing": held(tensor("coo", bytes={"values": 5000, "indices": 20000, "dense": 16384}))}
        ),
        lambda: Case(
            inventory={"failing": held(tensor("coo", bytes={"values": 3000, "indices": 12000, "dense": 16384}))}
        ),
        "smaller than dense, if not by much",
    ),
    Sample(
        "lowering.dense-storage",
        lambda: seen(product("strided", w=weight("strided"))),
        lambda: seen(product("strided", w=weight("strided", zeros=0.3, eligible=False))),
        "too few zeros for any sparse form",
    ),
    Sample(
        "lowering.mask-recompute",
        lambda: seen(product("strided", w=weight("strided")), masked()),
        lambda: seen(product("strided", w=weight("strided")), op("mul", "pointwise", operand(), operand(const=True))),
        "an activation is multiplied",
    ),
    Sample(
        "lowering.compiler-skip",
        lambda: Case(
            extra={
                ("compiled", "failing"): {
                    "parts": 1,
                    "swapped": 1,
                    "captured": 2,
                    "dense_captured": 9,
                    "eager_ms": 2.0,
                    "compiled_ms": 1.0,
                }
            }
        ),
        lambda: Case(
            extra={
                ("compiled", "failing"): {
                    "parts": 1,
                    "swapped": 1,
                    "captured": 9,
                    "dense_captured": 9,
                    "eager_ms": 2.0,
                    "compiled_ms": 1.0,
                }
            }
        ),
        "as much is captured as with dense weights",
    ),
    Sample(
        "lowering.densified",
        lambda: seen(op("to_dense", "densify", operand("csr"), source={"layout": "csr", "dtype": "float32"})),
        lambda: seen(
            op("to_dense", "densify", operand("csr"), source={"layout": "csr", "dtype": "float32"}, backward=True)
        ),
        "a gradient is made dense under backward",
    ),
    Sample(
        "lowering.densified",
        lambda: seen(
            product("strided", w=weight("strided", derived="_to_copy")),
            op("_to_copy", "copy", operand(dtype="int8", const=True, name="q"), constant=True, origin="q"),
        ),
        lambda: seen(
            product("strided", w=weight("strided", derived="_to_copy")),
            op("_to_copy", "copy", operand(dtype="int8"), constant=False),
        ),
        "an input is widened, no weight",
    ),
    Sample(
        "lowering.densified",
        lambda: seen(looked_up(16), product("strided", w=weight("strided", derived="aten::index"))),
        lambda: seen(looked_up(4096), product("strided", w=weight("strided", derived="aten::index"))),
        "a part of a weight of that size is selected, not unpacked",
    ),
    Sample(
        "lowering.densified",
        lambda: seen(widened("bfloat16"), product("strided", w=weight("strided", derived="aten::_to_copy"))),
        lambda: seen(widened("float32"), product("strided", w=weight("strided", derived="aten::_to_copy"))),
        "a copy that is as wide as what it copies",
    ),
    Sample(
        "lowering.mask-recompute",
        lambda: seen(selected("index"), product("strided", w=weight("strided", derived="aten::index"))),
        lambda: seen(selected("clone"), product("strided", w=weight("strided", derived="aten::clone"))),
        "a copy selects nothing",
    ),
    Sample(
        "lowering.unfused-mask",
        lambda: seen(*scores()),
        lambda: seen(*scores(hides=False)),
        "an additive bias, which hides nothing",
    ),
    Sample(
        "lowering.unfused-mask",
        lambda: seen(*scores(soft="exp")),
        lambda: seen(*scores(soft="tanh")),
        "no softmax, by name or by hand",
    ),
    Sample(
        "lowering.unsupported-family",
        lambda: seen(product(), op("convolution", "conv", operand(), weight=weight("strided"), path="conv")),
        lambda: seen(
            product("strided", w=weight("strided")),
            op("convolution", "conv", operand(), weight=weight("strided"), path="conv"),
        ),
        "no family has a sparse path here: that is dense storage",
    ),
    Sample(
        "kernel.wrong-orientation",
        lambda: seen(product("strided", "csc")),
        lambda: seen(product("csc", "strided")),
        "the CSC operand stands on the left",
    ),
    Sample(
        "kernel.unsupported",
        lambda: stopped("not implemented", died={"failing": "it raised"}),
        lambda: stopped("shapes cannot be multiplied", died={"failing": "it raised", "comparator": "it raised"}),
        "the inputs fit neither variant",
    ),
    Sample(
        "kernel.unsupported",
        lambda: stopped("not implemented", ok=False),
        lambda: stopped("shapes cannot be multiplied", ok=True),
        "a tiny product of the same kind runs",
    ),
    Sample(
        "kernel.unsupported",
        lambda: Case(
            census={
                "failing": census(
                    failed=(dict(op("mm", "product", operand("csr", dtype="bfloat16")), error="not implemented"),)
                )
            }
        ),
        lambda: Case(
            census={
                "failing": census(
                    failed=(dict(op("mm", "product", operand(dtype="bfloat16")), error="shapes do not fit"),)
                )
            }
        ),
        "a dense op raised and was caught",
    ),
    Sample("kernel.generic", lambda: seen(product("coo")), lambda: seen(product("csr")), "CSR has a vendor kernel"),
    Sample(
        "kernel.generic",
        lambda: seen(product("csr", w=weight(shape=[8, 64, 64]))),
        lambda: seen(product("strided", w=weight("strided", shape=[8, 64, 64]))),
        "a batched dense product",
    ),
    Sample(
        "kernel.below-crossover",
        lambda: seen(product("csr")),
        lambda: seen(product("strided", "csc")),
        "the wrong side comes first",
    ),
    Sample(
        "scheduling.format-conversion",
        lambda: hidden_conversion(backward=False),
        lambda: hidden_conversion(backward=True),
        "under backward it is the transpose",
    ),
    Sample(
        "scheduling.format-conversion",
        lambda: seen(op("_to_sparse_csr", "conversion", operand(), out=operand("csr"))),
        lambda: seen(op("_to_sparse_csr", "conversion", operand(), out=operand("csr"), backward=True)),
        "what is converted under backward is the transpose's matter",
    ),
    Sample(
        "scheduling.backward-transpose",
        lambda: hidden_conversion(backward=True),
        lambda: seen(op("sparse_mask", "conversion", operand(), backward=True)),
        "masking a gradient to the pattern rebuilds no transpose",
    ),
    Sample(
        "scheduling.row-imbalance",
        lambda: seen(
            product(),
            inventory={"failing": held(tensor(static_share={"2": 0.95, "4": 0.9}))},
            extra={("lock", "failing"): locked(2)},
        ),
        lambda: seen(
            product(),
            inventory={"failing": held(tensor(static_share={"2": 0.95, "4": 0.9}))},
            extra={("lock", "failing"): locked(1)},
        ),
        "one thread has no shares to balance",
    ),
    Sample(
        "scheduling.row-imbalance",
        lambda: seen(
            product(),
            inventory={"failing": held(tensor(static_share={"2": 0.5, "4": 0.6}))},
            extra={("lock", "failing"): locked(6)},
        ),
        lambda: seen(
            product(),
            inventory={"failing": held(tensor(static_share={"2": 0.5, "4": 0.26}))},
            extra={("lock", "failing"): locked(6)},
        ),
        "a quarter in each of four ranges is even, also on six threads",
    ),
    Sample(
        "scheduling.thread-oversubscription",
        lambda: Case(extra={("lock", "failing"): locked(6, "2")}),
        lambda: Case(extra={("lock", "failing"): locked(2, "2")}),
        "as many threads as cores",
    ),
    Sample(
        "scheduling.parallel-overhead",
        lambda: Case(extra={("lock", "failing"): locked(2)}, native=samples(0.6)),
        lambda: Case(extra=pair("lock", locked(2), locked(2)), native=samples(0.05)),
        "hardly any sample is at a barrier, and both have as many threads",
    ),
    Sample(
        "scheduling.parallel-overhead",
        lambda: Case(extra=pair("lock", locked(2), locked(1)), native=samples(0.0, "py-spy")),
        lambda: Case(extra=pair("lock", locked(2), locked(2)), native=samples(0.0, "py-spy")),
        "nobody saw the barriers, and both have as many threads",
    ),
    Sample(
        "scheduling.parallel-overhead",
        lambda: Case(extra=pair("lock", locked(2), locked(1)), native=samples(0.05)),
        lambda: Case(extra=pair("lock", locked(1), locked(2)), native=samples(0.05)),
        "threads may sleep at barriers, but it has fewer of them than the other",
    ),
    Sample(
        "scheduling.invariant-checks",
        lambda: seen(op("_validate_sparse_csr_tensor_args", "validate", operand())),
        lambda: seen(op("_sparse_csr_tensor_unsafe", "build", operand())),
        "the tensor is built without a check",
    ),
    Sample(
        "scheduling.host-bound",
        lambda: seen(SMALL, profile={"failing": profile(best_ms=1.0)}),
        lambda: seen(LARGE, dict(SMALL, calls=60, ns=180_000), profile={"failing": profile(best_ms=1.0)}),
        "the ops are large enough to outweigh their calls",
    ),
    Sample(
        "scheduling.host-bound",
        lambda: seen(SLICES, profile={"failing": profile(best_ms=1.0)}),
        lambda: seen(FULL_SLICES, profile={"failing": profile(best_ms=1.0)}),
        "each slice has work enough for its call",
    ),
    Sample(
        "scheduling.host-bound",
        lambda: seen(SMALL, profile={"failing": profile(best_ms=1.0)}),
        lambda: seen(SMALL, profile={"failing": profile(best_ms=50.0)}),
        "calls are few for so long a step",
    ),
    Sample(
        "execution.index-copy",
        lambda: copied_in_product(100),
        lambda: copied_in_product(64, 64),
        "what is copied inside the product is no index",
    ),
    Sample(
        "execution.dense-gradient",
        lambda: seen(op("mm", "product", operand(), backward=True), inventory={"failing": held(tensor())}),
        lambda: seen(
            op("mm", "product", operand(), backward=True, out=operand(shape=(8, 64))),
            inventory={"failing": held(tensor())},
        ),
        "a gradient of the activations' size",
    ),
    Sample(
        "execution.dense-gradient",
        lambda: seen(op("embedding_dense_backward", "other", operand(), backward=True, out=operand(shape=(9000, 64)))),
        lambda: seen(op("embedding_sparse_backward", "other", operand(), backward=True, out=operand("coo"))),
        "the gradient of a table is sparse",
    ),
    Sample(
        "execution.memory-growth",
        lambda: Case(extra={("growth", "failing"): {"rss": flat(), "heap": rising(5e4), "grad_nnz": [0] * 48}}),
        lambda: Case(extra={("growth", "failing"): {"rss": rising(5e4), "heap": flat(), "grad_nnz": [0] * 48}}),
        "more is resident, but no more is in use",
    ),
    Sample(
        "execution.memory-growth",
        lambda: Case(
            extra={("growth", "failing"): {"rss": flat(), "heap": flat(), "grad_nnz": [24 * i for i in range(48)]}}
        ),
        lambda: Case(
            extra={
                ("growth", "failing"): {"rss": flat(), "heap": flat(), "grad_nnz": [24 * min(i, 20) for i in range(48)]}
            }
        ),
        "it stops growing",
    ),
    Sample(
        "execution.bandwidth-bound",
        lambda: seen(
            product(w=weight(bytes={"values": 4_000_000, "indices": 4_000_000, "dense": 0})),
            extra={("roofs", "failing"): {"stream_gbs": 10.0, "cache_gbs": 40.0}},
        ),
        lambda: seen(
            product(w=weight(bytes={"values": 2_000_000, "indices": 2_000_000, "dense": 0})),
            extra={("roofs", "failing"): {"stream_gbs": 10.0, "cache_gbs": 40.0}},
        ),
        "half of the roof is no roof",
    ),
    Sample(
        "execution.throttled",
        lambda: Case(extra={("conditions", ""): {"blocks": [{"steal": 0.2}] * 12}}),
        lambda: Case(extra={("conditions", ""): {"blocks": [{"steal": 0.0}] * 12}}),
        "no CPU was taken away",
    ),
    Sample(
        "validation.quality-drift",
        lambda: drifted(0.2),
        lambda: drifted(0.2, outputs={"failing": outputs(repeats=False, repeat_error=0.4), "comparator": outputs()}),
        "a metric of answers that are drawn anew each time",
    ),
    Sample(
        "validation.precision",
        lambda: drifted(0.2, lock=differs("dtype.weights", declared=True), inventory=SAME_ZEROS),
        lambda: drifted(0.2, lock=differs("dtype.weights", declared=True), inventory=OTHER_ZEROS),
        "the zeros are not the same, so the dtype is not alone",
    ),
    Sample(
        "validation.wrong-result",
        lambda: Case(
            extra={
                ("truth", "failing"): {
                    "wrong": [
                        {
                            "op": "aten::relu",
                            "layouts": ["csr"],
                            "error": 0.5,
                            "tolerance": 1e-3,
                            "module": "layer",
                            "place": "",
                        }
                    ]
                }
            }
        ),
        lambda: Case(extra={("truth", "failing"): {"wrong": [], "checked": 9}}),
        "every op equals its twin",
    ),
    Sample(
        "validation.non-finite",
        lambda: Case(outputs={"failing": outputs(finite=False)}),
        lambda: Case(
            outputs={"failing": outputs(finite=True)}, extra={("truth", "failing"): {"nonfinite": {"op": "aten::log"}}}
        ),
        "an infinity on the way that no output keeps",
    ),
    Sample(
        "validation.nondeterminism",
        lambda: Case(outputs={"failing": outputs(repeats=False, repeat_error=1e-7), "comparator": outputs()}),
        lambda: Case(
            outputs={"failing": outputs(repeats=False, repeat_error=1e-7), "comparator": outputs(repeats=False)}
        ),
        "the comparator does not repeat either",
    ),
    Sample(
        "validation.nondeterminism",
        lambda: Case(outputs={"failing": outputs(drawn_error=0.2), "comparator": outputs()}),
        lambda: Case(outputs={"failing": outputs(drawn_error=0.2), "comparator": outputs(drawn_error=0.2)}),
        "both draw their answers",
    ),
    Sample(
        "validation.cold-start",
        lambda: timed(
            1.0, declared=Declared(speedup=1.5), settle={"failing": settled(2.0), "comparator": settled(40.0)}
        ),
        lambda: timed(
            1.0, declared=Declared(speedup=1.5), settle={"failing": settled(1.0), "comparator": settled(1.8)}
        ),
        "a first call that does not stand out from the steady state",
    ),
    Sample(
        "validation.cold-start",
        lambda: timed(
            1.0, declared=Declared(speedup=1.5), settle={"failing": settled(2.0), "comparator": settled(40.0)}
        ),
        lambda: timed(
            0.5, declared=Declared(speedup=1.5), settle={"failing": settled(2.0), "comparator": settled(40.0)}
        ),
        "the claim holds warm as well",
    ),
    Sample(
        "validation.cold-start",
        lambda: timed(1.0, declared=Declared(p99_ms=100), cold_ms={"failing": [300, 280, 310], "comparator": [3, 4, 3]}),
        lambda: timed(1.0, declared=Declared(p99_ms=100), cold_ms={"failing": [300, 90, 310], "comparator": [3, 4, 3]}),
        "one of its first calls keeps the objective",
    ),
    Sample(
        "validation.tail-only",
        lambda: timed(1.06, slow_every=16),
        lambda: timed(1.3, slow_every=16),
        "the median lost too much to be the tail's doing",
    ),
    Sample(
        "validation.tail-only",
        lambda: timed(1.0, slow_every=16),
        lambda: timed(1.5, slow_every=16),
        "the median is slower too",
    ),
]


def test_no_mechanism_is_without_a_sample() -> None:
    assert {s.mechanism for s in SAMPLES} == {m.id for m in all_mechanisms()}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.mechanism}: {s.why}")
def test_what_shows_it_makes_it_a_suspect_and_a_near_miss_does_not(sample: Sample) -> None:
    suspect = by_id(sample.mechanism).suspect
    found = suspect(sample.present(), "failing")
    assert found is not None
    assert found.summary
    assert found.passes
    assert suspect(sample.near(), "failing") is None, sample.why


@pytest.mark.parametrize("mechanism", all_mechanisms(), ids=lambda m: m.id)
def test_without_evidence_nothing_is_suspected(mechanism: Any) -> None:
    assert mechanism.suspect(Case(), "failing") is None
    assert mechanism.suspect(Case(), "comparator") is None
    assert mechanism.wants is None or mechanism.wants(Case()) is False


def test_a_dtype_without_a_sparse_kernel_has_nothing_to_win_from_one() -> None:
    bf16 = weight("strided", dtype="bfloat16")
    found = by_id("lowering.dense-storage").suspect(seen(product("strided", w=bf16)), "failing")
    assert found is not None
    assert found.share == 0.0
    plain = by_id("lowering.dense-storage").suspect(seen(product("strided", w=weight("strided"))), "failing")
    assert plain is not None
    assert plain.share > 0.5


def test_coo_that_outgrows_dense_is_tried_as_csr() -> None:
    big = tensor("coo", bytes={"values": 5000, "indices": 20000, "dense": 16384})
    found = by_id("ingress.index-overhead").suspect(Case(inventory={"failing": held(big)}), "failing")
    assert found is not None
    assert found.intervention == "coo-to-csr"


def test_truth_is_asked_where_sparse_tensors_are_made_in_the_step() -> None:
    made = op("_sparse_csr_tensor_unsafe", "build", operand(), out=operand("csr"))
    wants = by_id("validation.wrong-result").wants
    assert wants is not None
    assert wants(seen(made))
    assert not wants(seen(LARGE))
