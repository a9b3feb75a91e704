"""Samples of the mechanisms that show once it runs: scheduling, execution and validation."""

from __future__ import annotations

from payloads import (
    FULL_SLICES,
    LARGE,
    OTHER_ZEROS,
    SAME_ZEROS,
    SLICES,
    SMALL,
    Sample,
    copied_in_product,
    differs,
    drifted,
    flat,
    held,
    hidden_conversion,
    locked,
    op,
    operand,
    outputs,
    pair,
    product,
    profile,
    rising,
    samples,
    seen,
    settled,
    tensor,
    timed,
    weight,
)

from sparsetui.diagnosis.case import Case, Declared

RUN = [
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
        lambda: timed(
            1.0, declared=Declared(p99_ms=100), cold_ms={"failing": [300, 280, 310], "comparator": [3, 4, 3]}
        ),
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
