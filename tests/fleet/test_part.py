"""One node's part of a matrix, without Ray: what it says there is to measure, what it measures, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from script import workload

from sparsetui.fleet.part import Job, Node, signatures
from sparsetui.fleet.records import Part, Survey
from sparsetui.workload.spec import load

torch = pytest.importorskip("torch")

from sparsetui.probes.context import Context  # noqa: E402
from sparsetui.probes.formats import formats  # noqa: E402

CODE = Path(__file__).parents[1] / "runner" / "serving.py"
FIRST, SECOND = "640 x 512, width 48", "96 x 640, width 48"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("part")
    (folder / "serving.py").write_bytes(CODE.read_bytes())
    variant = 'entry = "serving.py:two_layers"\nthreads = 1\n'
    (folder / "w.toml").write_text(
        f'[failing]\n{variant}[comparator]\n{variant}[inputs]\nentry = "serving.py:requests"\n'
    )
    job = Job("n", str(folder / "w.toml"), load(folder / "w.toml").sha256, code="c0de")
    with Node(job, folder / "scratch", lambda message: None) as made:
        yield made


@pytest.fixture(scope="module")
def survey(node: Node) -> Survey:
    found = node.answer({"do": "survey"})
    assert isinstance(found, Survey)
    return found


def test_a_survey_tells_the_lock_and_the_signatures_most_work_first(survey: Survey) -> None:
    assert survey.state == "done", survey.why
    assert [s.name for s in survey.signatures] == [FIRST, SECOND]
    assert [s.calls for s in survey.signatures] == [1, 1]
    assert survey.signatures[0].sparsity[0] == pytest.approx(0.9, abs=0.01)
    assert survey.lock["failing"]["threads"] == "1"
    assert len(survey.lock_id) == 12


def test_a_signature_is_measured_on_its_own_layers_at_their_own_sparsity(node: Node, survey: Survey) -> None:
    for name in (SECOND, FIRST):
        part = node.answer({"do": "signature", "name": name, "seconds": 1.0})
        assert isinstance(part, Part)
        assert (part.why, part.signature, part.lock_id, part.code) == ("", name, survey.lock_id, "c0de")
        assert [x["signature"] for x in part.body["layers"]] == [name]
        own = part.body["sparsity"]
        point = next(p for p in part.body["curve"]["points"] if p["sparsity"] == own)
        assert len(point["speedup"]["csr-int32"]) >= 1


def test_a_signature_that_the_step_does_not_have_is_an_answer(node: Node, survey: Survey) -> None:
    part = node.answer({"do": "signature", "name": "3 x 3, width 3", "seconds": 1.0})
    assert isinstance(part, Part)
    assert "no product of the step is 3 x 3, width 3" in part.why


def test_after_its_worker_died_the_next_signature_has_a_new_one(node: Node, survey: Survey) -> None:
    assert node.replica is not None
    node.replica.kill()
    part = node.answer({"do": "signature", "name": FIRST, "seconds": 1.0})
    assert isinstance(part, Part)
    assert part.why == ""


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    w = workload(tmp_path)
    with Node(Job("n", str(w.path), "0" * 64), tmp_path / "scratch", lambda message: None) as made:
        found = made.answer({"do": "survey"})
    assert (found.why or "").endswith("is another file here than where the fleet was started")


def test_a_process_answers_line_by_line_until_its_requests_end(tmp_path: Path) -> None:
    w = workload(tmp_path)
    lines = [{"host": "n", "path": str(w.path), "sha256": "0" * 64}, {"do": "survey"}, {"do": "signature", "name": "x"}]
    done = subprocess.run([sys.executable, "-m", "sparsetui.fleet.part"], input="".join(json.dumps(x) + "\n" for x in lines),
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    reports = [json.loads(line)["report"] for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert reports[0]["state"] == "refused"
    assert "another file" in reports[1]["why"]


def test_signatures_are_those_of_pruned_weights_by_shape() -> None:
    def layer(name: str, signature: str, work: int) -> dict[str, Any]:
        return {"name": name, "signature": signature, "calls": 2, "work": work}

    layers = [layer("a", "s", 5), layer("b", "s", 5), layer("c", "t", 30), layer("d", "u", 90)]
    found = signatures(layers, {"a": 0.5, "b": 0.75, "c": 0.5, "d": 0.0})
    assert [(s.name, s.layers, s.calls, s.sparsity) for s in found] == [("t", 1, 2, (0.5,)), ("s", 2, 4, (0.5, 0.75))]


def test_only_one_signatures_twins_are_held_at_a_time() -> None:
    wide, narrow = torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(128, 32, bias=False)
    ctx = Context({}, "/tmp", lambda message: None)
    ctx.fn, ctx.inputs = torch.nn.Sequential(wide, narrow), [(torch.randn(4, 64),)]
    with torch.no_grad():
        seen = formats(ctx, {"do": "scout", "most": 9})["layers"]
        targets = {x["name"]: 0.9 for x in seen}
        for x in (*seen, *seen):
            ready = formats(ctx, {"do": "prepare", "targets": targets, "only": x["signature"]})
            assert [y["name"] for y in ready["layers"]] == [x["name"]]
            held = [layer.name for layer in ctx.state["bench"].hot.values() if layer.twins]
            assert held == [x["name"]]
