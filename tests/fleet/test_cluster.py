"""Three raylets on one machine, one core each, and real investigations on them through the command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="the extra fleet is not installed")

CODE = Path(__file__).parents[1] / "runner" / "serving.py"
BUDGET = int(os.environ.get("SPARSETUI_FLEET_BUDGET", "6"))  # seconds a host; a machine with other work needs more
NAMES = ("a", "b", "c")
MIB = 1 << 20
pytestmark = pytest.mark.slow


class Nodes:
    """The cluster: a head without cores, and a node a name, each on one core of this machine: c on the last, the others on the
    first. c is told to use many threads.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # a node that is killed is told within six seconds instead of half a minute; sooner, and a starved one is taken for dead
        quick = {
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 12,
            "health_check_initial_delay_ms": 0,
        }
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": 80 * MIB, "include_dashboard": False, "node_name": "head",
                            "_system_config": quick},
        )  # fmt: skip
        self.nodes = {name: self._node(name, **({"OMP_NUM_THREADS": "64"} if name == "c" else {})) for name in NAMES}
        self._settled()

    def _node(self, name: str, **env: str) -> Any:
        # MKL would quietly take fewer threads than it is told to
        env = {"MKL_DYNAMIC": "FALSE", "OMP_NUM_THREADS": "1", **env}
        return self.cluster.add_node(num_cpus=1, object_store_memory=80 * MIB, node_name=name, env_vars=env, wait=False)

    def _settled(self) -> None:
        self.cluster.wait_for_nodes()
        for name in self.nodes:
            for pid in self.processes(name):
                allow(pid, {core_of(name)})

    def processes(self, name: str) -> list[int]:
        """The node's raylet, and what it has started so far; what it starts later inherits what is set for these."""
        raylets = [p.process.pid for p in self.nodes[name].all_processes["raylet"]]
        return [*raylets, *(c.pid for r in raylets for c in psutil.Process(r).children(recursive=True))]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill(self, name: str) -> None:
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def again(self, name: str, **env: str) -> None:
        """The node as new, on one thread or as ``env`` says."""
        if name in self.nodes:
            self.kill(name)
        self.nodes[name] = self._node(name, **env)
        self._settled()


def core_of(name: str) -> int:
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1] if name == "c" else usable[0]


def allow(pid: int, cores: set[int]) -> None:
    """Keep all threads of a process on these cores."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cores)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    before = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        made = Nodes()
    except Exception:  # Ray waits 30 s for a raylet; on an overloaded machine that can be too short once
        made = Nodes()
    yield made
    made.cluster.shutdown()
    if before is None:
        del os.environ["RAY_USAGE_STATS_ENABLED"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workloads: a release that is slower wherever it runs, and a pair of twins."""
    made = tmp_path_factory.mktemp("fleet")
    (made / "serving.py").write_bytes(CODE.read_bytes())
    workloads = (
        ("slow", "many_times", "threads = 1\n"),
        ("twins", "right", ""),
        ("layers", "two_layers", "threads = 1\n"),
    )
    for name, failing, threads in workloads:
        other = failing if name == "layers" else "right"
        (made / f"{name}.toml").write_text(
            f'[failing]\nentry = "serving.py:{failing}"\n{threads}[comparator]\nentry = "serving.py:{other}"\n{threads}'
            '[inputs]\nentry = "serving.py:requests"\n'
        )
    return made


Told = tuple[int, dict[str, Any], str]


def decided(ask: Callable[[int], Told]) -> Told:
    """What ``ask(budget)`` told. On a starved machine *cannot tell* is right, and is asked again with more time."""
    told = ask(BUDGET)
    return ask(4 * BUDGET) if told[1]["sections"]["fleet"]["status"] == "cannot_answer" else told


def run(
    nodes: Nodes, workload: Path, *more: object, on: Callable[[str], None] | None = None, budget: int = BUDGET
) -> Told:
    """The command to its end: exit code, result, narration. ``on`` hears each line of narration as it comes."""
    argv = [sys.executable, "-m", "sparsetui", "fleet", workload, "--address", nodes.address, "--headless", "--budget", budget,
            "--json", "-", "--sessions", workload.parent / "sessions", *more]  # fmt: skip
    p = subprocess.Popen(
        [str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    said: list[str] = []

    def listen() -> None:
        assert p.stderr is not None
        for line in p.stderr:
            said.append(line)
            if on is not None:
                on(line)

    reader = threading.Thread(target=listen)
    reader.start()
    assert p.stdout is not None
    out = p.stdout.read()
    reader.join()
    return p.wait(), json.loads(out) if out else {}, "".join(said)


def rows(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {r["host"]: r for r in result["sections"]["fleet"]["rows"]}


@pytest.fixture(scope="module")
def bereft(nodes: Nodes, folder: Path) -> Told:
    """A slow release, with the third node killed while it measures."""

    def ask(budget: int) -> Told:
        if "c" not in nodes.nodes:
            nodes.again("c")
        return run(nodes, folder / "slow.toml", on=watch, budget=budget)

    def watch(line: str) -> None:
        if line.startswith("c: started") and "c" in nodes.nodes:
            nodes.kill("c")

    return decided(ask)


def test_with_one_node_killed_the_others_call_it_the_release(bereft: Any) -> None:
    code, result, said = bereft
    fleet = result["sections"]["fleet"]
    assert fleet["status"] == "release", said
    assert code == 1
    assert result["verdict"]["status"] == "fault"
    assert fleet["ratio"]["n"] == 2
    assert fleet["ratio"]["ci"][0] > 1.5
    assert [rows(result)[h]["state"] for h in NAMES] == ["done", "done", "lost"]


def test_the_session_says_what_is_missing(bereft: Any) -> None:
    _, result, said = bereft
    assert [(m["host"], m["state"]) for m in result["sections"]["fleet"]["missing"]] == [("c", "lost")]
    assert any("--session" in u["settle"] for u in result["cannot_answer"])
    assert "c: lost" in said
    assert "Traceback" not in said
    assert "\x1b" not in said


def test_each_host_is_evidence_with_its_lock_and_where_it_came_from(bereft: Any) -> None:
    _, result, _ = bereft
    found = {e["source"]["host"]: e for e in result["evidence"] if e["probe"] == "host"}
    assert set(found) == set(NAMES)
    for h in ("a", "b"):
        source = found[h]["source"]
        assert len(source["lock"]) == 12
        assert source["code"] == "path"
        assert source["python"].startswith("3.")
        assert found[h]["sha256"]
    assert found["a"]["source"]["lock"] == found["b"]["source"]["lock"]
    assert found["c"]["quality"] == "unavailable"


def test_the_session_is_gone_on_with_and_only_the_missing_host_runs(bereft: Any, nodes: Nodes, folder: Path) -> None:
    _, before, _ = bereft
    nodes.again("c")
    code, result, said = run(nodes, folder / "slow.toml", "--session", before["session"])
    fleet = result["sections"]["fleet"]
    assert fleet["status"] == "release", said
    assert code == 1
    assert result["session"] == before["session"]
    assert rows(result)["c"]["state"] == "done"
    assert "missing" not in fleet
    assert not re.findall(r"(?m)^\s*(?:\[.*?\]\s*)?a: ", said), "only the missing host runs again"
    assert len([e for e in result["evidence"] if e["probe"] == "host"]) == 4


# -- is it the host? -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calm(nodes: Nodes, folder: Path) -> Callable[[int], tuple[str, Path]]:
    """By budget: a session in which a and b have measured a pair of twins in calm, and where it lies."""
    made: dict[int, tuple[str, Path]] = {}

    def get(budget: int) -> tuple[str, Path]:
        if budget not in made:
            place = folder / f"calm-{budget}"
            _, result, said = run(nodes, folder / "twins.toml", "--hosts", "a,b", "--sessions", place, budget=budget)
            assert result, said
            made[budget] = result["session"], place
        return made[budget]

    return get


@pytest.fixture
def with_c(nodes: Nodes, folder: Path, calm: Any, tmp_path: Path) -> Callable[[], Told]:
    """The calm session gone on with: c, as it is now, measures the same pair of twins."""

    def ask(budget: int) -> Told:
        session, place = calm(budget)
        mine = tmp_path / f"sessions-{budget}"
        shutil.copytree(place, mine)
        return run(
            nodes, folder / "twins.toml", "--hosts", "a,b,c", "--session", session, "--sessions", mine, budget=budget
        )

    return lambda: decided(ask)


def the_sick(told: Told) -> dict[str, Any]:
    """What stands apart, after what holds for each host that is sick."""
    code, result, said = told
    fleet = result["sections"]["fleet"]
    assert fleet["status"] == "host", said
    assert code == 1
    (odd,) = fleet["apart"]
    assert odd["host"] == "c"
    found: dict[str, Any] = odd
    return found


def test_another_thread_setting_on_one_node_is_the_host_and_it_is_named(nodes: Nodes, with_c: Any) -> None:
    """The twins take their threads from the node's environment; node c's asks for 64 on one core."""
    nodes.again("c", OMP_NUM_THREADS="64")
    told = with_c()
    odd = the_sick(told)
    assert odd["factor"]["value"] > 1.5
    assert "threads: 64 here, 1 elsewhere" in odd["lock"]
    assert told[1]["verdict"]["mechanism"] == "ingress.lock-mismatch"
    assert told[1]["sections"]["fleet"]["ratio"]["n"] == 2


# -- and more --------------------------------------------------------------------------------------------------------


def test_ranks_are_watched_each_from_its_own_node(nodes: Nodes, tmp_path: Path) -> None:
    busy = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10000))"
    started = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    targets = ",".join(f"{host}:{p.pid}" for host, p in zip("ab", started, strict=True))
    argv = [sys.executable, "-m", "sparsetui", "fleet", "--attach", targets, "--address", nodes.address, "--seconds", "2",
            "--json", "-", "--sessions", str(tmp_path / "s")]  # fmt: skip
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    finally:
        for p in started:
            p.kill()
            p.wait()
    if "ermission" in done.stderr or "ermitted" in done.stderr:
        pytest.skip(f"no sampler may look here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [r["host"] for r in found["rows"]] == ["a", "b"]
    assert "missing" not in found


def test_a_name_that_no_node_has_is_one_line(nodes: Nodes, folder: Path) -> None:
    code, result, said = run(nodes, folder / "twins.toml", "--hosts", "a,nowhere")
    assert (code, result) == (2, {})
    line = said.strip().splitlines()[-1]
    assert "nowhere" in line
    assert "there are: a, b, c" in line


# -- a matrix over nodes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spread(nodes: Nodes, folder: Path) -> Told:
    """A matrix over three nodes, of which c has another lock, and b is killed over its first signature."""
    nodes.again("c", MALLOC_ARENA_MAX="2")

    def watch(line: str) -> None:
        if line.startswith("b: ") and "width" in line and "b" in nodes.nodes:
            nodes.kill("b")

    return run(nodes, folder / "layers.toml", "--matrix", on=watch, budget=5)


SHAPES = ["640 x 512, width 48", "96 x 640, width 48"]


def test_each_lock_has_its_own_table_with_every_signature(spread: Told) -> None:
    code, body, said = spread
    assert code == 0, said
    first, second = body["tables"].values()
    assert [r["signature"] for r in first["signatures"]] == SHAPES
    assert {r["node"] for r in first["signatures"]} == {"a"}
    assert [(r["signature"], r["node"]) for r in second["signatures"]] == [(s, "c") for s in SHAPES]
    assert "env.MALLOC_ARENA_MAX: 2 here, unset elsewhere" in second["summary"]
    assert {r["node"] for r in second["whole_steps_by_node"]} == {"c"}
    assert {r["node"] for r in first["whole_steps_by_node"]} == {"a", "b"}
    row = next(r for r in first["formats_by_signature"] if r["format"] == "csr-int32")
    assert row["time_against_dense"]["n"] >= 3
    assert row["time_against_dense"]["value"] > 0


def test_the_signature_of_a_node_that_died_goes_to_another_of_its_lock(spread: Told) -> None:
    _, body, said = spread
    (moved,) = body["moved"]
    assert (moved["from"], moved["to"]) == ("b", "a")
    assert moved["signature"] in SHAPES
    assert f"a: {moved['signature']}, instead of b" in said
    assert {r["host"]: r["state"] for r in body["rows"]} == {"a": "done", "b": "lost", "c": "done"}
    assert "unmeasured" not in body
    assert "Traceback" not in said
