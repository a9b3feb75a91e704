"""The seven stages in order. The spine: passes, mechanisms, playbooks and screens all hang on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage of the execution flow.

    ``passes`` are run in this order when the stage is run live; ``decides`` says what settles the question.
    """

    id: str
    title: str
    short: str
    question: str
    passes: tuple[str, ...]
    decides: str
    explains: str


STAGES: tuple[Stage, ...] = (
    Stage(
        "ingress", "ingress & metadata", "ingr",
        "Is what was loaded what was released, under one lock?",
        ("lock", "inventory"),
        "zero fractions, layouts, indices and bytes of every weight; the tags both variants ran under",
        "A mask that was dropped, a layer that was skipped or stored zeros spoil everything downstream.",
    ),
    Stage(
        "lowering", "lowering", "lowr",
        "Do the zeros reach a sparse layout, or does a dense product multiply them?",
        ("census",),
        "the layouts of the operands of every product, and work that depends on constants only",
        "Sparsity that stays in a strided tensor, a mask recomputed on each step, or a to_dense in the step.",
    ),
    Stage(
        "kernel", "kernel selection", "kern",
        "Which kernel really ran?",
        ("profile", "native"),
        "operand order and layout (census) and the symbol that ran (native)",
        "The right layout on the wrong side, a generic loop, or a kernel that cannot win at this density.",
    ),
    Stage(
        "scheduling", "scheduling", "schd",
        "Is work repeated, unbalanced or spent between the kernels?",
        ("profile",),
        "conversions, sorts and coalesces per step and their time; threads against cores",
        "Format conversions in each step, barriers, oversubscription, validation left on.",
    ),
    Stage(
        "execution", "execution", "exec",
        "Where does the time of the step go, and how much does each mechanism cost?",
        ("clock", "interventions"),
        "interleaved, unprobed latency of both variants, and the same with one mechanism removed",
        "The clock alone decides how large a regression is; an intervention decides what caused it.",
    ),
    Stage(
        "validation", "validation", "vald",
        "Are results, quality and SLA still right?",
        ("outputs", "quality"),
        "outputs against the comparator and against a masked-dense twin; the user's metric against its gate",
        "A fast wrong answer is not a speed-up; an average hides its tail.",
    ),
    Stage(
        "release", "release", "rels",
        "Can it be closed, and is there a rehearsed way back?",
        ("gates",),
        "every gate with its evidence or its waiver",
        "Owners, quality gate, replay and rollback rehearsal.",
    ),
)

BY_ID: dict[str, Stage] = {s.id: s for s in STAGES}
ORDER: dict[str, int] = {s.id: i for i, s in enumerate(STAGES)}

# The four owner roles, by the short names that mechanisms use.
OWNERS: dict[str, str] = {
    "ML": "ML performance engineer",
    "KL": "sparse kernel library owner",
    "RT": "runtime systems architect",
    "PR": "production reliability owner",
}

# What each role has to attach before an investigation can close.
CLOSURE_ARTIFACTS: dict[str, str] = {
    "ML performance engineer": "design rationale + trade-offs",
    "sparse kernel library owner": "profile traces + bottleneck map",
    "runtime systems architect": "test report + closure memo",
    "production reliability owner": "SLA and rollback record",
}
