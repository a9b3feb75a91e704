"""Three raylets on one machine, one core each, and real investigations on them through the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra fleet is not installed")

CODE = Path(__file__).with_name("serving.py")
BUDGET = int(os.environ.get("SPARSETUI_FLEET_BUDGET", "6"))  # seconds a host; a machine with other work needs more
NAMES = ("a", "b", "c")
MIB = 1 << 20
pytestmark = pytest.mark.slow


class Nodes:
    """The cluster: a head without cores, and a node a name. Node c is told to use many threads."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # a node that is killed is told within two seconds instead of half a minute
        quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 0}
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": 80 * MIB, "include_dashboard": False, "node_name": "head",
                            "_system_config": quick},
        )  # fmt: skip
        self.nodes = {name: self._node(name) for name in NAMES}
        self.cluster.wait_for_nodes()

    def _node(self, name: str) -> Any:
        # MKL would quietly take fewer threads than it is told to
        env = {"MKL_DYNAMIC": "FALSE", "OMP_NUM_THREADS": "64" if name == "c" else "1"}
        return self.cluster.add_node(num_cpus=1, object_store_memory=80 * MIB, node_name=name, env_vars=env, wait=False)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill(self, name: str) -> None:
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def again(self, name: str) -> None:
        self.nodes[name] = self._node(name)
        self.cluster.wait_for_nodes()


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
    for name, failing, threads in (("slow", "many_times", "threads = 1\n"), ("twins", "right", "")):
        (made / f"{name}.toml").write_text(
            f'[failing]\nentry = "serving.py:{failing}"\n{threads}[comparator]\nentry = "serving.py:right"\n{threads}'
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
    assert "a: " not in said
    assert len([e for e in result["evidence"] if e["probe"] == "host"]) == 4


def test_another_thread_setting_on_one_node_is_the_host_and_it_is_named(nodes: Nodes, folder: Path) -> None:
    """The twins take their threads from the node's environment; node c's asks for 64 on one core."""
    code, result, said = decided(lambda budget: run(nodes, folder / "twins.toml", budget=budget))
    fleet = result["sections"]["fleet"]
    assert fleet["status"] == "host", said
    assert code == 1
    (odd,) = fleet["apart"]
    assert odd["host"] == "c"
    assert odd["factor"]["value"] > 1.5
    assert "threads: 64 here, 1 elsewhere" in odd["lock"]
    assert result["verdict"]["mechanism"] == "ingress.lock-mismatch"
    assert fleet["ratio"]["n"] == 2


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
