"""Samples of the mechanisms that decide what is to run: ingress, lowering and kernel selection."""

from __future__ import annotations

from payloads import (
    LAYER,
    PRUNED,
    Sample,
    census,
    differs,
    held,
    looked_up,
    masked,
    op,
    operand,
    product,
    scores,
    seen,
    selected,
    stopped,
    tensor,
    weight,
    widened,
)

from sparsetui.diagnosis.case import Case, Declared

CHOSEN = [
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
]
