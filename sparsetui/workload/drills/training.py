"""Trains the drills' classifier on scikit-learn's digits, prunes it, and keeps both in the user's cache.

The recipe takes about ten seconds of one thread and is really carried out: magnitude pruning of each hidden layer, then
a short fine-tune under the masks. What it came to is in ``manifest.json`` beside the weights.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsetui.workload.errors import printable

WIDTH = 1024
HIDDEN = 3
PIXELS = 64
CLASSES = 10

RECIPE: dict[str, Any] = {
    "data": "sklearn digits, 1797 images of 8x8, every fifth one held out",
    "layers": [PIXELS, *[WIDTH] * (HIDDEN + 1), CLASSES],
    "epochs": 5,
    "fine_tune_epochs": 2,
    "batch": 96,
    "learning_rate": 1e-3,
    "pruned": 0.92,
    "seed": 20,
    "version": 1,
}
MIN_ACCURACY = 0.95

Say = Callable[[str], None]


class DrillError(RuntimeError):
    """The drills cannot be prepared; ``str()`` is one line."""


def cache_folder() -> Path:
    """Where the drills keep their weights: ``$SPARSETUI_DRILLS``, or a folder of the user's cache."""
    import platformdirs

    own = os.environ.get("SPARSETUI_DRILLS")
    return Path(own).expanduser().absolute() if own else platformdirs.user_cache_path("sparsetui") / "drills"


def prepare(say: Say = lambda text: None) -> Path:
    """The folder with trained weights; trains them first if the cache holds none that are whole.

    ``say`` hears what is done in one line each. Raises :class:`DrillError` in one line: scikit-learn or torch is
    missing, or the cache cannot be written.
    """
    import filelock

    key = recipe_key()
    root = cache_folder()
    folder = root / f"digits-{key}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(root / ".lock", timeout=300):
            for left in root.glob(".new-*"):  # of a training that was killed: nobody else works under this lock
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            if not is_whole(folder):
                if folder.exists():
                    say("the drills' cached weights are damaged: training them again")
                _train_apart(folder, say)
            _write_atomically(root / "latest", folder.name.encode())
    except filelock.Timeout:
        raise DrillError(f"another process has been training the drills in {printable(str(root), 200)} for 5 minutes"
                         ) from None  # fmt: skip
    except OSError as why:
        raise DrillError(
            f"{printable(str(root), 200)}: cannot keep the drills' weights there ({why.strerror or why}); "
            "set SPARSETUI_DRILLS to a folder that can be written"
        ) from None
    return folder


def recipe_key() -> str:
    """Names a cache entry: another recipe or another torch trains anew."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        raise DrillError("the drills need torch here: pip install 'sparsetui[drills]'") from None
    text = json.dumps({**RECIPE, "torch": torch_version}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_whole(folder: Path) -> bool:
    """Whether every file that the manifest names is there with the hash it names."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        files = manifest["files"]
        return bool(files) and all(_sha256(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def manifest(folder: Path) -> dict[str, Any]:
    """What training came to: accuracies, zero fractions, seconds, and the hash of each file."""
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_atomically(path: Path, body: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _train_apart(folder: Path, say: Say) -> None:
    """Train in a process of its own, so that the app neither loads torch nor waits for it."""
    argv = [sys.executable, "-P", "-m", "sparsetui.workload.drills.training", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    child = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        assert child.stdout is not None
        for line in child.stdout:
            say(printable(line.rstrip(), 300))
        _, complaint = child.communicate()
    except BaseException:
        child.kill()
        child.wait()
        raise
    if child.returncode:
        last = (complaint or "").strip().splitlines()[-1:] or [f"it ended with status {child.returncode}"]
        raise DrillError(last[0] if child.returncode == 2 else f"training the drills failed: {printable(last[0], 300)}")


def main(folder: Path) -> int:
    """The training process: narration on stdout, the one line of a failure on stderr."""
    try:
        train_into(folder, lambda text: print(text, flush=True))
    except DrillError as why:
        print(why, file=sys.stderr)
        return 2
    return 0


def train_into(folder: Path, say: Say) -> None:
    """Carry the recipe out and put ``folder`` in place whole, or not at all."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DrillError("the drills need scikit-learn: pip install 'sparsetui[drills]'") from None
    import numpy as np
    from safetensors.numpy import save_file

    say(f"training the drills' classifier on scikit-learn's digits (once, about 15 s) into {folder}")
    started = time.perf_counter()
    digits = load_digits()
    images = np.asarray(digits.data / 16.0, dtype=np.float32)
    labels = np.asarray(digits.target, dtype=np.int64)
    held_out = np.arange(len(labels)) % 5 == 4
    trained = fit(images[~held_out], labels[~held_out], images[held_out], labels[held_out])
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        arrays = {"images": images[held_out], "labels": labels[held_out]}
        for release in ("dense", "pruned"):
            save_file(trained[release], new / f"{release}.safetensors")
            arrays.update({f"{release}.{name}": value for name, value in trained[release].items()})
        for name, value in arrays.items():  # what the workers read: NumPy alone is enough there
            np.save(new / f"{name}.npy", value, allow_pickle=False)
        files = {p.name: _sha256(p) for p in sorted(new.iterdir())}
        facts = {"recipe": RECIPE, **trained["facts"], "seconds": time.perf_counter() - started, "files": files}
        (new / "manifest.json").write_text(json.dumps(facts, indent=1))
        for path in new.iterdir():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    say(
        f"trained in {facts['seconds']:.0f} s: test accuracy {facts['accuracy']['dense']:.3f} dense, "
        f"{facts['accuracy']['pruned']:.3f} with {RECIPE['pruned']:.0%} of each hidden layer pruned"
    )


def fit(images: Any, labels: Any, test_images: Any, test_labels: Any) -> dict[str, Any]:
    """Train, prune and fine-tune. Images are ``(n, 64)`` float32 in [0, 1], labels ``(n,)`` int64.

    Gives ``{"dense": {name: array}, "pruned": {…}, "facts": {…}}``; weights are float32 ``(out, in)``.
    """
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one thread gives the same weights on every host with the same build
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(RECIPE["seed"])
            x, y = torch.from_numpy(images), torch.from_numpy(labels)
            tx, ty = torch.from_numpy(test_images), torch.from_numpy(test_labels)
            sizes = RECIPE["layers"]
            linears = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
            names = ["stem", *(f"hidden.{i}" for i in range(HIDDEN)), "head"]
            model = nn.Sequential(*(m for layer in linears for m in (layer, nn.ReLU())))[:-1]

            def run(epochs: int, rate: float, masks: dict[int, Any]) -> None:
                optimiser = torch.optim.Adam(model.parameters(), lr=rate)
                for _ in range(epochs):
                    order = torch.randperm(len(y))
                    for at in range(0, len(y), RECIPE["batch"]):
                        rows = order[at : at + RECIPE["batch"]]
                        optimiser.zero_grad()
                        cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                        optimiser.step()
                        with torch.no_grad():
                            for index, mask in masks.items():
                                linears[index].weight.mul_(mask)

            def accuracy() -> float:
                with torch.no_grad():
                    return float((model(tx).argmax(1) == ty).float().mean())

            def weights() -> dict[str, Any]:
                pairs = zip(names, linears, strict=True)
                return {f"{n}.{k}": v.detach().numpy().copy() for n, m in pairs for k, v in m.named_parameters()}

            run(RECIPE["epochs"], RECIPE["learning_rate"], {})
            result: dict[str, Any] = {"dense": weights()}
            reached = {"dense": accuracy()}
            masks = {}
            with torch.no_grad():
                for index in range(1, HIDDEN + 1):
                    weight = linears[index].weight
                    limit = weight.abs().flatten().kthvalue(int(RECIPE["pruned"] * weight.numel())).values
                    masks[index] = (weight.abs() > limit).float()
                    weight.mul_(masks[index])
            reached["pruned, before the fine-tune"] = accuracy()
            run(RECIPE["fine_tune_epochs"], RECIPE["learning_rate"] / 2, masks)
            result["pruned"] = weights()
            reached["pruned"] = accuracy()
    finally:
        torch.set_num_threads(threads)
    for release in ("dense", "pruned"):
        if not reached[release] >= MIN_ACCURACY:
            raise DrillError(f"training reached {reached[release]:.3f} test accuracy ({release}), below {MIN_ACCURACY}")
    zeros = {n: float((result["pruned"][f"{n}.weight"] == 0).mean()) for n in names}
    result["facts"] = {"accuracy": reached, "zero_fraction": zeros, "torch": torch.__version__}
    return result


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
