"""The intervention of a host that took CPU from the failing variant: the same pair again, in blocks of which nothing was taken.

Calm is not guessed from the host's load but seen by each block itself: it did not wait for a CPU, no quota stopped its cgroup, no
other guest had its core and the clock was level with the best seen. Blocks of either variant are held to that alike. After one
that was disturbed it waits, longer each time, and takes it again. Under a quota both take single steps with rests between them.
Single-threaded pairs are put on the core that others use least, wherever their launch had kept them, and a variant that was
launched at a lower priority gets the other's, where this process may give it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparsetui.diagnosis.stats import Block, Round, compare
from sparsetui.diagnosis.stats.trouble import LEAST, best_clock, lost
from sparsetui.diagnosis.suspects import suspects
from sparsetui.diagnosis.verdict import judge
from sparsetui.runner import clocking, trials
from sparsetui.runner.cores import Cores, level
from sparsetui.worker.faults import WorkerFault
from sparsetui.worker.handle import Replica

if TYPE_CHECKING:
    from sparsetui.runner.lab import Lab

NAME, MECHANISM = "calm", "execution.throttled"
_LEAST, _MOST = 3, 8  # pairs
_PAUSES = (0.05, 0.4)  # seconds before a block that is taken again, and the longest that they grow to
_PATIENCE = 3.0  # seconds without one calm block, after which the next pair gets its turn
_ORDERS = (("failing", "comparator", "comparator", "failing"), ("comparator", "failing", "failing", "comparator"))
_REFILL_S = 0.21  # two periods of a CPU quota, as the kernel has them unless told otherwise
_LEAST_S = 3.0  # with less time than this no three pairs can be had


class Waiting:
    """What kept calm from coming: disturbed blocks by their causes, and how used the calmest core was."""

    def __init__(self) -> None:
        self.blocks = 0
        self.causes: Counter[tuple[str, str]] = Counter()  # (variant, condition)
        self.used: list[float] = []  # how much of the calmest core others used, look by look
        self.quota = False  # a CPU quota has stopped a block
        self.levelled = False  # one variant was launched at a lower priority, and had the other's here

    def disturbed(self, variant: str, told: Mapping[str, Any], best_mhz: float) -> bool:
        """Whether anything was taken from a block; the reason is counted."""
        self.blocks += 1
        stopped = bool(told.get("throttled"))
        self.quota = self.quota or stopped
        if not stopped and (lost(told, best_mhz) or 0.0) <= LEAST:
            return False
        self.causes[(variant, _cause(told))] += 1
        return True

    def said(self, seconds: float, pairs: int) -> str:
        """One line: that calm did not come, what came instead, and what would settle it."""
        text = f"not settled: calm came for {pairs} pairs of processes" if pairs else "not settled: calm never came"
        text += f" in {seconds:.1f} s"
        if not self.causes:
            return f"{text}; settled by a larger --budget"
        ((variant, cause), n), *_ = self.causes.most_common(1)
        text += f": {_WORDS[cause][0]} in {n} of {self.blocks} blocks, of the {variant} variant"
        if cause == "delay_s" and self.used:
            text += f"; others used {100 * sum(self.used) / len(self.used):.0f} % of the calmest core"
        return f"{text}; settled by {_WORDS[cause][1]}"


def _cause(told: Mapping[str, Any]) -> str:
    """The condition that took most from a block."""
    wall = float(told.get("wall_s", 0.0)) or 1.0
    if told.get("throttled"):
        return "throttled"
    if float(told.get("delay_s", 0.0)) / wall > LEAST:
        return "delay_s"
    return "steal" if float(told.get("steal", 0.0)) > LEAST else "freq_mhz"


# condition of a block -> what it means, and what would settle it
_WORDS = {
    "throttled": ("a CPU quota stopped the cgroup", "the same quota for both, with room for more than a step"),
    "delay_s": (
        "threads waited for a CPU",
        "a run on a quiet host, at the same priority and on the same cores for both",
    ),
    "steal": ("another guest had the CPU", "a run on a host whose cores are not shared"),
    "freq_mhz": ("the clock was below the best seen", "a run with pinned clocks, or on a cool host"),
}


def look(lab: Lab, keep_s: float) -> None:
    """Wait for calm where the host is suspected, and nothing that was switched off inside a process explains the gap."""
    case = lab.case()
    found = next((s for s in suspects(case) if s.mechanism.id == MECHANISM and s.intervention == NAME), None)
    if found is None or (NAME, "failing") in lab.trials or judge(case).verdict.status == "fault":
        return
    trials.try_out(lab, found, seconds=lab.left - keep_s)


def calm(lab: Lab, seconds: float) -> None:
    """Fresh pairs, interleaved, measured only while nothing is taken from them, for at most ``seconds``."""
    key, waiting, began = (NAME, "failing"), Waiting(), time.monotonic()
    lab.arms[key] = []
    failed, rounds = "", list[Round]()
    if seconds < _LEAST_S or not lab.ready():
        failed = "not settled: no time was left to wait for calm; settled by a larger --budget"
    else:
        try:
            with lab.journal.phase(
                "execution", f"intervention {NAME}", "the same pair, while nothing is taken from it"
            ):
                _pairs(lab, rounds, waiting, began + seconds)
        except WorkerFault as e:
            before = dict(lab.faults)
            lab.fault(e)
            lab.faults = before  # what the clock saw of the variant stands
            failed = e.fault.message
    lab.calm = rounds
    check: dict[str, Any] = {
        "applied": len(rounds), "equal": True, "blocks": waiting.blocks,
        "disturbed": {" ".join(k): n for k, n in waiting.causes.items()},
        "notes": ["the same code; outputs were not compared"] + ["both at the same priority"] * waiting.levelled,
    }  # fmt: skip
    if len(rounds) >= _LEAST:
        after = compare(rounds)
        check.update(ratio=after.ratio.value, ci=after.ratio.ci)
    elif not failed:
        failed = waiting.said(time.monotonic() - began, len(rounds))
    trials.keep_trial(lab, key, MECHANISM, "execution", check, failed, rounds)


def _pairs(lab: Lab, rounds: list[Round], waiting: Waiting, end: float) -> None:
    while len(rounds) < _MOST and time.monotonic() < end:
        lab.check_cancelled()
        pair, _ = lab.gear.pair(lab.deadline())
        waiting.levelled = level(r.pid for r in pair.values()) or waiting.levelled
        try:
            clocking.settle(pair, 0.5, lab.deadline(), lab.cancel)
            taken = _calm_round(lab, pair, len(rounds), waiting, end)
        finally:
            for r in pair.values():
                lab.gear.end(r)
        if taken is not None:
            rounds.append(taken)
            lab.journal.live(progress=min(1.0, len(rounds) / (_LEAST + 1)))
        if len(rounds) > _LEAST and compare(rounds).verdict != "undecided":
            return


def _calm_round(lab: Lab, pair: Mapping[str, Replica], number: int, waiting: Waiting, end: float) -> Round | None:
    """One ABBA cycle of one pair, each block taken again until it was calm; ``None`` where patience or time runs out first.

    More pairs tell more than longer ones, where calm is rare.
    """
    made: dict[str, list[Block]] = {v: [] for v in pair}
    best = best_clock(lab.clock.conditions)
    cores = Cores(r.pid for r in pair.values()) if lab.clock.lone else None
    try:
        for at, v in enumerate(_ORDERS[number % 2]):
            pause, until = 0.0 if at else _PAUSES[0], min(end, time.monotonic() + _PATIENCE)
            while True:
                lab.check_cancelled()
                if time.monotonic() > until:
                    return None
                pause = max(pause, _REFILL_S) if waiting.quota else pause
                core = _calmest(waiting, pause) if pause else None
                if cores is not None and core is not None:
                    cores.keep(core)
                block = _block(lab, pair[v], v, number, at, len(made[v]), waiting.quota)
                if not waiting.disturbed(v, block.conditions, best):
                    made[v].append(block)
                    break
                pause = min(max(2 * pause, _PAUSES[0]), _PAUSES[1])
    finally:
        if cores is not None:
            cores.free()
    return Round(made["failing"], made["comparator"])


def _block(lab: Lab, replica: Replica, variant: str, number: int, at: int, done: int, sparing: bool) -> Block:
    """One block. Where a quota stops a cgroup that runs on, single steps without a warm-up are all that is asked of either."""
    count = 1 if sparing else clocking.steps_for(lab.step_ms(variant), lab.payloads[("build", variant)]["inputs"])
    args = {"count": count, "start": done * count, "warm": 0 if sparing else 1}
    got = replica.call("block", args, deadline_s=lab.deadline(), cancel=lab.cancel)
    lab.journal.latency(variant, sorted(got["times_ms"])[len(got["times_ms"]) // 2])
    return Block(variant, f"{variant}-calm-{number}", at, got["times_ms"], got["conditions"])


def _calmest(waiting: Waiting, seconds: float) -> int | None:
    """Wait for ``seconds``, and tell the core that was used least meanwhile: by others, for the pair stands still."""
    before = _used()
    time.sleep(seconds)
    after = _used()
    shares = {}
    for core in sorted(set(before) & set(after) & os.sched_getaffinity(0)):
        busy, whole = (after[core][k] - before[core][k] for k in (0, 1))
        shares[core] = busy / whole if whole > 0 else 0.0
    if not shares:
        return None
    core = min(shares, key=lambda c: shares[c])
    waiting.used.append(shares[core])
    return core


def _used() -> dict[int, tuple[int, int]]:
    """core -> (jiffies in use or stolen, all jiffies); empty where /proc does not tell."""
    out: dict[int, tuple[int, int]] = {}
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/stat") as f:
        for line in f:
            if line.startswith("cpu") and line[3].isdigit():
                name, *fields = line.split()[:9]
                v = [int(x) for x in fields]
                out[int(name[3:])] = (sum(v) - v[3] - v[4], sum(v))
    return out
