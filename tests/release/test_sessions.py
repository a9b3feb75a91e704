"""The release half on real workers: matrix, replay, rehearsal and closing of one small service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sparsetui.cli.app import app
from sparsetui.release.runner import ReleaseRunner
from sparsetui.runner.investigation import Investigation
from sparsetui.session.store import Store
from sparsetui.workload.spec import load

pytest.importorskip("torch")

CASES = Path(__file__).parent / "cases"
GATES = ("lock", "reproduced", "stable", "mechanism", "tails", "matrix", "quality", "replay", "owners", "rollback")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("sessions"))


@pytest.fixture(scope="module")
def session(store: Store) -> str:
    """An investigated session of the service, with everything that closure needs measured."""
    runner = Investigation(load(CASES / "service.toml"), store, budget_s=14)
    try:
        runner.run_all()
        found = runner.state().id
    finally:
        runner.close()
    release = ReleaseRunner(load(CASES / "service.toml"), store, budget_s=12, session=found)
    try:
        release.run_replay()
        release.run_matrix()
        release.run_lens()
        release.run_rehearsal(6)
    finally:
        release.close()
    return found


def _section(store: Store, session: str, name: str) -> dict[str, Any]:
    body: dict[str, Any] = store.open(session).state().sections[name]
    return body


def _run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "sparsetui", *args], capture_output=True, text=True, timeout=120)


def test_the_matrix_holds_every_kind_and_what_cannot_run_says_why(store: Store, session: str) -> None:
    body = _section(store, session, "matrix")
    rows = {r["name"]: r for r in body["rows"]}
    assert {r["kind"] for r in rows.values()} == {"dense", "unstructured", "structured", "mixed"}
    assert "CUDA devices only" in rows["2:4"]["p50"]["reason"]
    assert rows["2:4"]["quality_drift"]["value"] is not None
    for name in ("dense", "csr-int32", "csr-int64-rhs", "coo", "bsr-8", "channels", "mixed"):
        assert rows[name]["p50"]["value"] > 0
        assert rows[name]["energy"]["quality"] in ("measured", "estimated")
        assert rows[name]["risk"].startswith(("low", "medium", "high"))
    assert rows["dense"]["quality_drift"]["value"] == 0
    # both are pruned from the same weights to the same sparsity, and lose differently
    assert rows["bsr-16"]["quality_drift"]["value"] > rows["csr-int32"]["quality_drift"]["value"]
    assert rows["bsr-16"]["risk"].startswith("high")
    assert rows["csr-int64"]["index_bytes"] > rows["csr-int32"]["index_bytes"]
    assert "mixed within quality" in rows
    assert rows["mixed within quality"]["quality_drift"]["value"] <= 0.2
    assert body["crossover"] or store.open(session).state().faults


def test_the_mix_is_never_slower_than_the_best_single_format_beyond_the_floor(store: Store, session: str) -> None:
    body = _section(store, session, "matrix")
    rows = {r["name"]: r for r in body["rows"]}
    best, floor = body["best_single"], body["noise_floor"]["value"]
    mixed, single = (1.0 if r == "dense" else rows[r]["against_dense"]["value"] for r in ("mixed", best))
    assert mixed <= single * (1 + floor) * 1.001


def test_the_replay_serves_failing_comparator_and_the_fixed_variant(store: Store, session: str) -> None:
    body, state = _section(store, session, "replay"), store.open(session).state()
    assert state.result is not None
    confirmed = state.result.verdict.confidence == "confirmed"
    assert set(body["variants"]) == {"failing", "comparator", *(["fixed"] if confirmed else [])}
    assert body["candidate"] == ("fixed" if confirmed else "comparator")
    assert body["log"]["inputs_by"] == "size"
    assert isinstance(body["passed"], bool)
    for v in body["variants"].values():
        assert v["saturation"]["value"] > 0
        assert v["served"] <= v["offered"] == body["log"]["replayed"]


def test_the_way_back_is_rehearsed_against_its_criteria(store: Store, session: str) -> None:
    body = _section(store, session, "rehearsal")
    metrics = [c["metric"] for c in body["criteria"]]
    assert "latency p99" in metrics
    assert "quality drift against the comparator" in metrics
    for c in body["criteria"]:
        assert c["threshold"]
        assert c["window"]
        assert c["who"]
    assert body["time_against_before"]["value"] == pytest.approx(1, abs=0.8)
    drift = next(c for c in body["criteria"] if c["metric"].startswith("quality"))
    assert (drift["comparator_after"]["value"], drift["fires"]) == (0, "no")


def test_the_lens_places_the_runs_of_the_session(store: Store, session: str) -> None:
    body = _section(store, session, "lens")
    labels = [p["label"] for p in body["points"]]
    latency = store.open(session).state().metrics["latency_ms"]
    timed = [v for v in ("comparator", "failing") if latency[v]["p50"]["value"] is not None]
    assert labels[: len(timed)] == timed
    assert "csr-int32" in labels
    assert body["zones"][0]["name"] == "baseline"
    assert "saturation" in [z["name"] for z in body["zones"]]


def test_closing_needs_every_gate_and_says_which_are_open(store: Store, session: str) -> None:
    root = ["--sessions", str(store.root)]
    first = _run("close", session, *root)
    assert first.returncode == 1
    assert [line.split()[1] for line in first.stdout.replace("not run", "not-run").splitlines()[:10]] == list(GATES)
    assert "NOT CLOSED" in first.stdout
    assert "owners" in first.stdout.splitlines()[-1]
    people = [
        x
        for role in ("ML", "KL", "RT", "PR")
        for x in ("--owner", f"{role}=@{role.lower()}", "--attach", f"{role}=auto")
    ]
    second = _run("close", session, *people, "--sign", "PR=@sre", *root)
    open_ = [line.split()[1] for line in second.stdout.replace("not run", "not-run").splitlines()[:10]
             if line.startswith(("failed", "not-run"))]  # fmt: skip
    assert "owners" not in open_
    waive = [x for g in open_ for x in ("--waive", g)]
    third = _run("close", session, *waive, "--why", "the test host is too busy", "--by", "@lead", *root)
    assert third.returncode == 0, third.stdout
    assert third.stdout.splitlines()[-1] == "CLOSED"
    state = store.open(session).state()
    assert state.closed == "@sre"
    memo = (store.find(session) / "memo.md").read_text()
    assert "NOT CLOSED" not in memo
    assert all(w in memo for w in (["the test host is too busy"] if open_ else []))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--owner", "boss=@x"], "'boss' is no role; accepted are ML"),
        (["--owner", "ML"], "expected ROLE=WHO"),
        (["--attach", "ML=E99"], "no evidence E99"),
        (["--waive", "replay"], "cannot be waived without a reason"),
        (["--waive", "moon", "--why", "x", "--by", "y"], "no gate is called"),
        (["--owners-file", "/nowhere/OWNERS"], "/nowhere/OWNERS"),
    ],
)
def test_what_cannot_be_recorded_is_one_line_and_exit_2(tmp_path: Path, args: list[str], said: str) -> None:
    with Store(tmp_path).create("bare") as writer:
        bare = writer.id
    got = CliRunner().invoke(app, ["close", bare, *args, "--sessions", str(tmp_path)])
    assert got.exit_code == 2
    assert said in got.stderr
    assert len(got.stderr.strip().splitlines()) == 1


def test_a_run_needs_the_workload_and_a_replay_needs_a_log(tmp_path: Path) -> None:
    with Store(tmp_path).create("bare") as writer:
        bare = writer.id
    got = CliRunner().invoke(app, ["close", bare, "--matrix", "--sessions", str(tmp_path)])
    assert got.exit_code == 2
    assert "name it with --workload" in got.stderr
    plain = tmp_path / "plain.toml"
    plain.write_text('[failing]\nentry = "stalls.py:steady"\n[inputs]\nshape = [2]\n')
    (tmp_path / "stalls.py").write_text((CASES / "stalls.py").read_text())
    got = CliRunner().invoke(app, ["close", bare, "--replay", "--workload", str(plain), "--sessions", str(tmp_path)])
    assert got.exit_code == 2
    assert "plain.toml: has no [replay] with a log; name one with --log" in got.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--workload", "/nowhere/w.toml"], "/nowhere/w.toml: does not exist"),
        (
            ["--workload", str(CASES / "service.toml")],
            "nothing is to be measured; add --matrix, --replay or --rehearse",
        ),
        (["--log", "/nowhere/log.csv"], "/nowhere/log.csv: No such file"),
        (["--speed", "2"], "--speed says how fast --log is played"),
        (["--why", "because", "--by", "@x"], "--why and --by belong to a waiver"),
    ],
)
def test_an_option_that_would_do_nothing_or_cannot_be_read_is_refused(
    tmp_path: Path, args: list[str], said: str
) -> None:
    with Store(tmp_path).create("bare") as writer:
        bare = writer.id
    got = CliRunner().invoke(app, ["close", bare, *args, "--sessions", str(tmp_path)])
    assert got.exit_code == 2
    assert said in got.stderr
    assert len(got.stderr.strip().splitlines()) == 1


def test_matrix_on_the_command_line_gives_json_on_stdout(tmp_path: Path) -> None:
    got = _run("matrix", str(CASES / "service.toml"), "--budget", "7", "--json", "-", "--sessions", str(tmp_path))
    assert got.returncode in (0, 3), got.stderr
    body = json.loads(got.stdout)
    assert {r["name"] for r in body["rows"]} >= ({"dense", "mixed"} if got.returncode == 0 else set())
    assert (tmp_path / body["session"] / "memo.md").is_file()


@pytest.mark.parametrize(
    ("which", "said"), [("now_and_then", "only the tail fails"), ("always", "every request is slower")]
)
def test_a_replay_tells_a_failing_tail_from_a_shift(tmp_path: Path, which: str, said: str) -> None:
    runner = ReleaseRunner(load(CASES / f"stalls_{which}.toml"), Store(tmp_path), budget_s=26)
    try:
        body = runner.run_replay()
    finally:
        runner.close()
    assert said in body["variants"]["failing"]["verdict"], body["summary"]
    assert "broken" not in body["variants"]["comparator"]["verdict"], body["summary"]
    assert body["candidate"] == "comparator"
    assert "there is no fixed variant" in body["why"]
