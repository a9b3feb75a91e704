"""Every verb on every kind of callable that a builder may return: an answer in plain JSON, and no mode left behind."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from sparsetui.probes import walk  # noqa: E402
from sparsetui.probes.interventions import registry  # noqa: E402


def mostly_zero(n=16, m=16, keep=0.1):
    return torch.randn(n, m) * (torch.rand(n, m) < keep)


GLOBAL = {"w": torch.eye(16)}


def closure():
    w, box = mostly_zero(), {"deep": [(mostly_zero().to_sparse_csr(),)]}
    return lambda x: x @ w + (box["deep"][0][0] @ x.t()).t()


def partial():
    return functools.partial(lambda w, x, scale: x @ w * scale, mostly_zero(), scale=torch.tensor(2.0))


class Service:
    """A plain object with state in a tuple, a dict and an attribute."""

    def __init__(self):
        self.parts = (mostly_zero(), {"head": mostly_zero().to_sparse_csc()})
        self.bias = torch.randn(16)

    def __call__(self, x):
        return (x @ self.parts[0] + self.bias) @ self.parts[1]["head"]

    def serve(self, x):
        return self(x)


def bound_method():
    return Service().serve


def uses_global():
    return lambda x: x @ GLOBAL["w"]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


def autograd_function():
    w = nn.Parameter(torch.randn(16, 16))

    def step(x):
        w.grad = None
        Square.apply(x, w).sum().backward()
        return w.grad.clone()

    return step


def training():
    m = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    opt = torch.optim.Adam(m.parameters())

    def step(x):
        opt.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        opt.step()
        return {"loss": loss.detach()}

    return step


def sparse_embedding_training():
    table = nn.Embedding(32, 16, sparse=True)
    opt = torch.optim.SparseAdam(table.parameters())

    def step(x):
        opt.zero_grad()
        loss = table(x.argsort(1) % 32).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


def eval_module():
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4, bias=False)).eval()


def dropout_in_train_mode():
    return nn.Sequential(nn.Linear(16, 16), nn.Dropout())


def lstm():
    rnn = nn.LSTM(16, 8, batch_first=True)
    return lambda x: rnn(x[:, None])[0]


def conv_and_linear():
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))


def pruned():
    from torch.nn.utils import prune

    m = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    for layer in m:
        prune.random_unstructured(layer, "weight", amount=0.9)
    return m


def parametrized():
    return nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))


def transformer():
    m = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    return lambda x: m(x[None])


def quantised():
    q, scale = (mostly_zero() * 10).to(torch.int8), torch.tensor(0.1)
    return lambda x: x @ (q.float() * scale)


def dynamic_quantised():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(16, 16)), {nn.Linear}, dtype=torch.qint8)


def scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval())


def traced():
    return torch.jit.trace(nn.Sequential(nn.Linear(16, 16), nn.ReLU()).eval(), torch.randn(4, 16))


def frozen_script():
    return torch.jit.freeze(scripted())


def inference_inside():
    m = nn.Linear(16, 16)

    def step(x):
        with torch.inference_mode():
            return m(x)

    return step


def half():
    w = mostly_zero().bfloat16()
    return lambda x: (x.bfloat16() @ w, x.sum() > 0, 3, None, "text")


def returns_nothing():
    w = mostly_zero()

    def step(x):
        x @ w

    return step


def non_finite():
    w = torch.randn(16, 16)
    return lambda x: torch.log(x - 100) @ w


def catches():
    s = mostly_zero().to_sparse_csr()

    def step(x):
        try:
            return torch.bmm(s, x)
        except RuntimeError:
            return x @ s.to_dense()

    return step


def empty():
    w = torch.empty(16, 0)
    return lambda x: x @ w


def mkldnn():
    w = torch.randn(16, 16).to_mkldnn()
    return lambda x: x @ w.to_dense()


SURFACES = [
    closure,
    partial,
    Service,
    bound_method,
    uses_global,
    autograd_function,
    training,
    sparse_embedding_training,
    eval_module,
    dropout_in_train_mode,
    lstm,
    conv_and_linear,
    pruned,
    parametrized,
    transformer,
    quantised,
    dynamic_quantised,
    scripted,
    traced,
    frozen_script,
    inference_inside,
    half,
    returns_nothing,
    non_finite,
    catches,
    empty,
    mkldnn,
]


@pytest.mark.parametrize("build", SURFACES, ids=lambda f: f.__name__)
def test_every_verb_answers(replica, build):
    torch.manual_seed(0)
    r = replica(build())
    rows = r.ask("inventory")["tensors"]
    assert not [x for x in rows if "unreadable" in x]
    r.ask("census", steps=2)
    for verb, args in [
        ("inventory", {}),
        ("lock", {}),
        ("profile", {"steps": 2}),
        ("truth", {"seconds": 1}),
        ("outputs", {}),
        ("support", {}),
        ("growth", {"steps": 3, "seconds": 1}),
        ("settle", {"seconds": 0.01, "least": 2}),
        ("block", {"count": 2}),
        ("loop", {"seconds": 0.01}),
        ("compiled", {}),
        ("autopsy", {}),
    ]:
        r.ask(verb, **args)


@pytest.mark.parametrize("build", SURFACES, ids=lambda f: f.__name__)
def test_no_intervention_changes_a_result(replica, build):
    r = replica(build())
    for ident in sorted(registry()):
        got = r.ask("check", intervention=ident)
        assert got["equal"] or not got["repeats"], ident


def test_no_steps_of_its_own(replica):
    """A callable without inputs of its own choosing: an empty tuple of arguments."""
    w = mostly_zero()
    r = replica(lambda: w @ w, ())
    assert r.ask("census", steps=2)["rows"]
    assert r.ask("check", intervention="csr-twin")["equal"]


def test_lock_tags_are_text(replica):
    tags = replica(eval_module()).ask("lock")["tags"]
    assert {
        "torch",
        "python",
        "interpreter",
        "build",
        "isa",
        "threads",
        "interop_threads",
        "deterministic",
        "invariant_checks",
        "usable_cores",
        "affinity",
        "cpu",
        "dtype.output",
        "dtype.weights",
        "shapes.inputs",
        "shapes.outputs",
    } <= set(tags)
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in tags.items())
    assert tags["dtype.weights"] == "float32"


def test_lock_tells_shapes_apart(replica):
    a, b = (replica(eval_module(), (torch.randn(n, 16),)).ask("lock")["tags"]["shapes.inputs"] for n in (2, 3))
    assert a != b


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (closure, {"w", "box['deep'][0][0]"}),
        (partial, {"args[0]", "scale"}),
        (Service, {"parts[0]", "parts[1]['head']", "bias"}),
        (uses_global, {"GLOBAL['w']"}),
        (
            pruned,
            {
                "0.weight_orig",
                "0.bias",
                "0.weight_mask",
                "0.weight",
                "1.weight_orig",
                "1.bias",
                "1.weight_mask",
                "1.weight",
            },
        ),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_names_of_what_is_held(build, names):
    assert {n for n, _ in walk.held_tensors(build())} >= names


def test_weights_loaded_inside_the_builder():
    from sparsetui.probes.loading import Watch

    def build():
        m = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        state = {
            "0.weight": torch.eye(16).to_sparse_csr().to_dense(),
            "0.bias": torch.zeros(16),
            "1.weights": torch.eye(16),
        }
        m.load_state_dict(state, strict=False, assign=True)
        return m

    original = nn.Module.load_state_dict
    with Watch() as watch:
        made = build()
    got = watch.report(made)
    assert nn.Module.load_state_dict is original
    assert got["made_dense"] == ["0.weight"]
    assert got["loads"] == [{"missing": ["1.weight", "1.bias"], "unexpected": ["1.weights"]}]


def test_a_builder_that_raises_leaves_the_loader_as_it_was():
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from sparsetui.probes.loading import Watch

    original = nn.Module.load_state_dict
    with pytest.raises(ZeroDivisionError), Watch():
        raise ZeroDivisionError
    assert nn.Module.load_state_dict is original
    assert _get_current_dispatch_mode_stack() == []


def test_support_names_what_has_no_kernel(replica):
    w = torch.eye(16, dtype=torch.int8).to_sparse_csr()
    ok = torch.eye(16).to_sparse_csr()
    got = {(p["layout"], p["dtype"]): p["ok"] for p in replica(lambda x: (w, ok @ x.t())[1]).ask("support")["products"]}
    assert got[("csr", "float32")] is True
    assert ("csr", "int8") in got


def test_outputs_that_differ_from_call_to_call(replica):
    state = []

    def step(x):
        state.append(1)
        return torch.zeros(len(state))

    got = replica(step, (torch.randn(4, 16),)).ask("outputs")
    assert got["repeats"] is False
