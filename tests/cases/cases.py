"""The field cases as workload files, each with the answer that is right.

``case.workload`` is an ordinary workload file of this folder; threads are pinned to one on both sides, so that a busy
host makes the answers slower and not other, unless the mechanism is about threads.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent


class Case(NamedTuple):
    """One pair. ``mechanism`` is ``None`` where nothing is wrong; ``also`` are answers that are as right.

    ``second`` is the later fault of a double one, which has to be among the findings. ``ruled_out`` has to be among
    what was ruled out, if it is named at all, and never be the verdict. ``raises`` says that the failing step ends in an
    error, which is the evidence; ``compiles`` that it needs a C++ compiler and seconds before the first step.
    """

    id: str
    surface: str  # module, or closure (functional code without a module)
    workload: Path
    mechanism: str | None
    note: str
    budget: float = 30.0
    also: tuple[str, ...] = ()
    second: str | None = None
    ruled_out: str | None = None
    raises: bool = False
    compiles: bool = False

    @property
    def name(self) -> str:
        return self.workload.stem

    def right(self, status: str, mechanism: str | None) -> bool:
        """Whether a verdict is a right answer to this case."""
        if self.mechanism is None:
            return status == "no_fault" and mechanism is None
        return status == "fault" and mechanism in (self.mechanism, *self.also)


def _both(stem: str, id: str, mechanism: str | None, module: str, closure: str, **more: object) -> list[Case]:
    return [
        Case(id, surface, FOLDER / f"{stem}_{surface}.toml", mechanism, note, **more)  # type: ignore[arg-type]
        for surface, note in (("module", module), ("closure", closure))
    ]


def _one(stem: str, id: str, mechanism: str | None, note: str, surface: str = "module", **more: object) -> Case:
    return Case(id, surface, FOLDER / f"{stem}.toml", mechanism, note, **more)  # type: ignore[arg-type]


FIELD: tuple[Case, ...] = (
    *_both(
        "r01_dense_storage", "R01", "lowering.dense-storage",
        "prune.remove leaves zeros in nn.Linear; a speed-up and CSR were promised",
        "the same in two plain matmuls",
    ),
    *_both(
        "r02_mask_recompute", "R02", "lowering.mask-recompute",
        "torch's pruning hooks left on", "F.linear(x, weight * mask)",
    ),
    *_both(
        "r03_mask_dropped", "R03", "ingress.mask-dropped",
        "load_state_dict(strict=False) over weight_orig and weight_mask",
        "the same load, and the weights then taken out of the module",
    ),
    *_both(
        "r05_sparsity_decayed", "R05", "ingress.sparsity-decayed",
        "one optimiser step without the masks before the export", "averaging with the dense weights before the export",
    ),
    *_both(
        "r06_stored_zeros", "R06", "ingress.stored-zeros",
        "converted to CSR, then masked: exact zeros are stored", "values of 1e-9 are stored",
    ),
    *_both(
        "r07_pattern_mismatch", "R07", "ingress.pattern-mismatch",
        "2:4 was pruned along the output axis", "unstructured zeros in 16x16 blocks, which are then nearly all stored",
    ),
    *_both(
        "r09_index_overhead", "R09", "ingress.index-overhead",
        "half of the weights zero, CSR with 64-bit indices: 1.5 times the dense bytes",
        "45 % stored: 1.35 times the dense bytes",
    ),
    *_both(
        "r10_wrong_orientation", "R10", "kernel.wrong-orientation",
        "F.linear with a CSR weight", "torch.mm(x, csr.t())",
    ),
    *_both(
        "r11_format_conversion", "R11", "scheduling.format-conversion",
        "a CSC weight: the product converts it on each call", "to_sparse_csr() written in the step",
    ),
    _one(
        "r13_unsupported_module", "R13", "kernel.unsupported",
        "CSR under autocast to bfloat16: the product raises", raises=True,
    ),
    _one(
        "r13_unsupported_closure", "R13", "kernel.unsupported",
        "an except branch that densifies, in bfloat16", surface="closure",
    ),
    *_both(
        "r14_below_crossover", "R14", "kernel.below-crossover",
        "52 % sparsity on the CSR kernel", "54 % sparsity on the CSR kernel",
    ),
    *_both(
        "r16_compiler_skip", "R16", "lowering.compiler-skip",
        "torch.compile over a module whose frame meets a CSR buffer", "over a function that closes over a CSR weight",
        budget=90, compiles=True,
    ),
    *_both(
        "r17_dense_gradient", "R17", "execution.dense-gradient",
        "torch.sparse.mm of a COO parameter, against a gradient at the stored positions", "the same with CSR",
    ),
    # The sparse tensor breaks its layout's invariants from the start and the first wrong figure comes of that, so the
    # first failing mechanism is at ingress; validation.wrong-result is what it leads to.
    *_both(
        "r21_invalid_indices", "R21", "ingress.invalid-indices",
        "duplicate, unsorted columns under a sine", "the same in a function",
        second="validation.wrong-result",
    ),
    *_both(
        "r25_invariant_checks", "R25", "scheduling.invariant-checks",
        "check_invariants=True where the weight is rebuilt in each step", "the global switch left on",
    ),
    # The weights end as strided zeros: what made them so (to_dense at load) and what runs (a dense product) are one fault.
    *_both(
        "r34_densified_at_load", "R34", "lowering.densified",
        "load_state_dict knows no CSR, so the checkpoint was made dense", "the same to get past deepcopy",
        also=("lowering.dense-storage",),
    ),
)  # fmt: skip

TRAPS: tuple[Case, ...] = (
    *_both("trap_dense", "T1", None, "dense is faster here and nothing claims otherwise", "the same in a function"),
    *_both("trap_same", "T2", None, "the two are one", "the same in a function"),
    *_both(
        "trap_index", "T3", None, "64-bit indices on a product of 1600 rows", "on a product of 1400 rows",
        ruled_out="execution.index-copy",
    ),
    *_both(
        "trap_quality", "T4", "validation.quality-drift", "over-pruned, faster, and wrong", "the same in a function",
    ),
)  # fmt: skip

DOUBLES: tuple[Case, ...] = (
    _one("double_zeros_orientation", "D1", "ingress.stored-zeros", "ingress and kernel",
         second="kernel.wrong-orientation"),
    _one("double_mask_conversion", "D2", "lowering.mask-recompute", "lowering and scheduling",
         second="scheduling.format-conversion"),
    _one("double_orientation_conversion", "D3", "kernel.wrong-orientation", "kernel and scheduling",
         second="scheduling.format-conversion"),
    _one("double_gap_generic", "D4", "ingress.coverage-gap", "ingress and kernel", second="kernel.generic"),
    _one("double_densified_index", "D5", "lowering.densified", "lowering and execution",
         second="execution.index-copy"),
    _one("double_generic_quality", "D6", "kernel.generic", "kernel and validation",
         second="validation.quality-drift"),
)  # fmt: skip

SAME: tuple[Case, ...] = (
    _one("same_mlp", "A1", None, "an MLP against itself", budget=20),
    _one("same_transformer", "A2", None, "a small transformer against itself", budget=20),
    _one("same_lstm", "A3", None, "an LSTM against itself", budget=20),
    _one("same_conv", "A4", None, "a conv net against itself", budget=20),
)

# One or two pairs for each mechanism of the catalogue that no field case and no drill covers. Those about threads start the
# same code with two thread counts.
CATALOGUE: tuple[Case, ...] = (
    *_both(
        "catalogue_crowded", "C01", "scheduling.thread-oversubscription",
        "six threads on two cores", "the same in a function",
    ),
    *_both(
        "catalogue_tiny", "C02", "scheduling.parallel-overhead",
        "dozens of elementwise ops that are barely worth splitting, on two threads", "the same with small sparse products",
    ),
    *_both(
        "catalogue_host", "C03", "scheduling.host-bound",
        "96 small experts called one by one", "rows normalised one by one",
    ),
    *_both(
        "catalogue_skew", "C04", "scheduling.row-imbalance",
        "the first eighth of the rows holds all blocks, on two threads", "the same in a function",
    ),
    *_both(
        "catalogue_transpose", "C05", "scheduling.backward-transpose",
        "backward through a frozen CSR weight transposes it each time", "the same when only a prompt is trained",
    ),
    *_both(
        "catalogue_leak", "C06", "execution.memory-growth",
        "a list keeps every answer", "sparse gradients that nobody clears",
    ),
    *_both(
        "catalogue_wide", "C07", "execution.index-copy",
        "64-bit indices under three rows", "64-bit indices under a vector",
    ),
    *_both(
        "catalogue_family", "C08", "lowering.unsupported-family",
        "a pruned convolution before a CSR head", "a pruned LSTM before a CSR projection",
    ),
    *_both(
        "catalogue_mask", "C09", "lowering.unfused-mask",
        "where() over all scores", "masked_fill_ over all scores",
    ),
    *_both(
        "catalogue_int8", "C10", "lowering.densified",
        "int8 weights are scaled back in the step", "dequantize() in the step",
    ),
    *_both(
        "catalogue_batched", "C11", "kernel.generic",
        "twelve sparse matrices as one COO tensor under bmm", "eight of them in a function",
    ),
    *_both(
        "catalogue_precision", "C12", "validation.precision",
        "bfloat16 where a small difference matters", "bfloat16 keys under a sharp softmax",
    ),
    *_both(
        "catalogue_inf", "C13", "validation.non-finite",
        "a stored zero meets the logarithm of zero", "a softmax by hand overflows",
    ),
    *_both(
        "catalogue_dice", "C14", "validation.nondeterminism",
        "a sampler seeded by the system", "a dither taken from the clock",
    ),
    *_both(
        "catalogue_wrong", "C15", "validation.wrong-result",
        "edges listed twice under a ReLU", "uncoalesced entries declared coalesced, under a tanh",
    ),
    *_both(
        "catalogue_cold", "C16", "validation.cold-start",
        "the release prepares on its first call", "the release converts on its first call",
    ),
    *_both(
        "catalogue_tail", "C17", "validation.tail-only",
        "every 16th request sorts a table", "every 16th request writes a log",
    ),
    *_both(
        "catalogue_env", "C18", "ingress.lock-mismatch",
        "MKL_CBWR in one environment", "the same in a function",
    ),
    *_both(
        "catalogue_dtype", "C19", "ingress.lock-mismatch",
        "weights exported in double precision", "the same in a function",
    ),
    *_both(
        "catalogue_target", "C20", "ingress.coverage-gap",
        "targets that name nothing any more", "a pattern that matches nothing",
    ),
    *_both(
        "catalogue_coo", "C21", "ingress.index-overhead",
        "COO at 72 % zeros", "COO at 70 % zeros", second="kernel.generic",
    ),
)  # fmt: skip

# A pair that truly differs by 3 %, for no reason that this tool knows: the rounds must see it, and nothing may be blamed.
SLOWER: tuple[Case, ...] = (_one("slower_pair", "A5", None, "one product more than thirty-three", budget=60),)

CASES: tuple[Case, ...] = FIELD + TRAPS + DOUBLES + SAME + SLOWER + CATALOGUE
