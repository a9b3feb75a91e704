"""The verb ``build``: call the variant's builder once and load the inputs."""

import contextlib
import time
from typing import Any, Dict

from sparsetui.worker.child import limits, load


def build(context: Any, args: Dict[str, Any]) -> Dict[str, Any]:
    """Fill ``context.fn`` and ``context.inputs``.

    Answers ``seconds`` of the builder (module import included), the number of ``inputs``, the ``torch`` version, the
    number of ``threads``, ``rss_bytes`` and, for a derived variant, how many tensors were ``densified``. With ``watch`` in
    the spec, the builder runs under :class:`sparsetui.probes.loading.Watch`, whose report is added. A derived variant that
    cannot be had raises :class:`load.LoadError`.

    Random generators are seeded before the builder and again before the inputs: both variants then draw the same
    inputs, however many numbers their builders consumed.
    """
    import torch

    from sparsetui.probes import loading
    from sparsetui.worker.child.replica import seed_all

    spec = context.spec
    folder = str(spec.get("folder") or ".")
    seed_all()
    began = time.perf_counter()
    builder = load.resolve_callable(str(spec["entry"]), folder)
    context.emit({"doing": "build", "entry": spec["entry"]})
    watch = loading.Watch() if spec.get("watch") else None
    with watch or contextlib.nullcontext():
        made = builder()
    seconds = time.perf_counter() - began
    if not callable(made):
        raise load.LoadError(
            "entry %r: it returned %s; expected an nn.Module or a callable" % (spec["entry"], type(made).__name__)
        )
    answer: Dict[str, Any] = {"seconds": seconds}
    if watch is not None:
        answer.update(watch.report(made))
    context.state["resolve"] = lambda entry: load.resolve_callable(entry, folder)
    if spec.get("derive") == "dense":
        answer.update(_densify(made))
    context.emit({"doing": "inputs"})
    seed_all()
    context.inputs = load.inputs(spec.get("inputs") or {}, folder)
    context.fn = made
    answer.update(
        inputs=len(context.inputs),
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        rss_bytes=limits.rss_bytes(),
    )
    return answer


def _densify(made: Any) -> Dict[str, int]:
    import torch

    from sparsetui.probes.walk import held_tensors, replace_tensors

    def dense(t: Any) -> Any:
        return t.detach().to_dense() if t.layout is not torch.strided else None

    count = replace_tensors(made, dense)
    left = [name for name, t in held_tensors(made) if t.layout is not torch.strided]
    if left:  # then it would be compared with itself
        raise load.LoadError(
            "no comparator is named, and none can be derived: %s is sparse and cannot be replaced where it is held; "
            "expected a [comparator]" % " and ".join(left[:3])
        )
    return {"densified": count}
