"""Finding the tensors that unknown code holds: modules, plain attributes, closures, partials, containers.

Whatever this walk cannot reach (C++ objects, globals) is still found by the census, as a constant operand of a product.
"""

from __future__ import annotations

import collections
import functools
import types
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

import torch

_MAX_NODES = 200_000
_OPAQUE = (str, bytes, int, float, bool, type(None), types.ModuleType, type, torch.dtype, torch.device)


def held_tensors(root: Any) -> List[Tuple[str, torch.Tensor]]:
    """``(name, tensor)`` of every tensor reachable from ``root``, breadth first, each tensor once.

    Module parameters and buffers keep their qualified names; other holders are named by how they were reached
    (``forward.__closure__.weight``, ``cache['w']``).
    """
    return [(name, t) for name, t, _ in _reach(root)]


def owners(root: Any) -> Dict[int, str]:
    """``id(module)`` -> qualified name of every ``nn.Module`` reachable from ``root``."""
    out: Dict[int, str] = {}
    queue: List[Tuple[str, Any]] = [("", root)]
    for name, obj in _objects(queue):
        if isinstance(obj, torch.nn.Module):
            out.setdefault(id(obj), name or type(obj).__name__)
    return out


def held_objects(root: Any) -> Iterator[Any]:
    """Every object reachable from ``root``, itself first, each once."""
    seen: Set[int] = set()
    for _, obj in _objects([("", root)]):
        if id(obj) not in seen:
            seen.add(id(obj))
            yield obj


def replace_tensors(root: Any, swap: Callable[[torch.Tensor], Any]) -> int:
    """Replace in place every reachable tensor for which ``swap`` returns another one; returns how many were."""
    done = 0
    memo: Dict[int, Any] = {}
    held = [(t, put) for _, t, put in _edges([("", root, _nowhere)]) if isinstance(t, torch.Tensor)]
    for t, put in held:  # every holder of a tensor, not only the first: a tied weight stays tied
        if id(t) not in memo:
            memo[id(t)] = swap(t)
        new = memo[id(t)]
        if new is None or new is t:
            continue
        if isinstance(t, torch.nn.Parameter) and not isinstance(new, torch.nn.Parameter):
            new = memo[id(t)] = torch.nn.Parameter(new, requires_grad=t.requires_grad)
        done += put(new)
    return done


def _reach(root: Any) -> Iterator[Tuple[str, torch.Tensor, Callable[[Any], bool]]]:
    seen: Set[int] = set()
    for name, obj, put in _edges([("", root, _nowhere)]):
        if isinstance(obj, torch.Tensor) and id(obj) not in seen:
            seen.add(id(obj))
            yield name or "root", obj, put


def _objects(queue: List[Tuple[str, Any]]) -> Iterator[Tuple[str, Any]]:
    for name, obj, _ in _edges([(n, o, _nowhere) for n, o in queue]):
        yield name, obj


def _edges(start: List[Tuple[str, Any, Callable[[Any], bool]]]) -> Iterator[Tuple[str, Any, Callable[[Any], bool]]]:
    queue = list(start)
    visited: Set[int] = set()
    i = 0
    while i < len(queue) and i < _MAX_NODES:
        name, obj, put = queue[i]
        i += 1
        yield name, obj, put
        if isinstance(obj, (torch.Tensor, _OPAQUE)) or id(obj) in visited:
            continue
        visited.add(id(obj))
        # plain values lead nowhere, and a vocabulary of them must not use the walk up
        queue.extend(c for c in _children(name, obj, put) if not isinstance(c[1], _OPAQUE))


def _children(name: str, obj: Any, put: Callable[[Any], bool]) -> List[Tuple[str, Any, Callable[[Any], bool]]]:
    """What ``obj`` holds, each with how to put another in its place; ``put`` puts another in the place of ``obj``."""
    dot = name + "." if name else ""
    out: List[Tuple[str, Any, Callable[[Any], bool]]] = []
    if isinstance(obj, torch.nn.Module):
        for table in ("_parameters", "_buffers", "_modules"):
            d = _dict_of(obj, table)
            out += [(dot + str(k), v, _put_module(obj, table, k)) for k, v in d.items() if v is not None]
        for k, v in list(vars(obj).items()):
            if k not in ("_parameters", "_buffers", "_modules") and "hook" not in k:
                out.append((dot + k, v, _put_attr(obj, k)))
        out += _of_class(dot, type(obj))
    elif isinstance(obj, dict):
        out += [(f"{name}[{k!r}]", v, _put_item(obj, k)) for k, v in list(obj.items())]
    elif isinstance(obj, list):
        out += [(f"{name}[{k}]", v, _put_item(obj, k)) for k, v in enumerate(obj)]
    elif isinstance(obj, tuple):
        now = list(obj)
        out += [(f"{name}[{k}]", v, _put_tuple(type(obj), now, k, put)) for k, v in enumerate(obj)]
    elif isinstance(obj, (set, frozenset)):
        out += [(f"{name}[{k}]", v, _nowhere) for k, v in enumerate(obj)]
    elif isinstance(obj, functools.partial):
        out += [(dot + "func", obj.func, _nowhere), (dot + "args", obj.args, _put_args(obj))]
        out += [(dot + k, v, _put_item(obj.keywords, k)) for k, v in obj.keywords.items()]
    elif isinstance(obj, types.MethodType):
        out.append((name, obj.__self__, _nowhere))
        if isinstance(obj.__self__, type):
            out += _of_class(dot, obj.__self__)
        out.append((dot + obj.__func__.__name__, obj.__func__, _nowhere))
    elif isinstance(obj, types.BuiltinMethodType):  # tensor.matmul, generator.send
        out.append((name, obj.__self__, _nowhere))
    elif isinstance(obj, types.FunctionType):
        out += _function(dot, obj)
    elif isinstance(obj, types.GeneratorType) and obj.gi_frame is not None:
        out += [(dot + k, v, _nowhere) for k, v in obj.gi_frame.f_locals.items()]
    elif isinstance(obj, collections.deque):
        out += [(f"{name}[{k}]", v, _put_item(obj, k)) for k, v in enumerate(obj)]
    elif hasattr(obj, "__dict__") or hasattr(type(obj), "__slots__"):
        out += [(dot + k, v, _put_attr(obj, k)) for k, v in _attributes(obj)]
        out += _of_class(dot, type(obj))
        call = getattr(type(obj), "__call__", None)
        if isinstance(call, types.FunctionType):
            out += _function(dot, call)
    return out


def _attributes(obj: Any) -> List[Tuple[str, Any]]:
    out = list(getattr(obj, "__dict__", {}).items())
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for k in (slots,) if isinstance(slots, str) else slots:
            found = getattr(obj, k, None) if k not in ("__dict__", "__weakref__") and not k.startswith("__") else None
            if found is not None:
                out.append((k, found))
    return out


def _of_class(dot: str, cls: type) -> List[Tuple[str, Any, Callable[[Any], bool]]]:
    """Tensors, and containers that may hold some, that the user's class has as attributes of its own."""
    out: List[Tuple[str, Any, Callable[[Any], bool]]] = []
    for c in cls.__mro__:
        if c.__module__.partition(".")[0] not in ("builtins", "torch", "abc", "typing"):
            out += [(dot + k, v, _put_class(c, k)) for k, v in vars(c).items()
                    if isinstance(v, (torch.Tensor, torch.nn.Module, list, dict, tuple)) and not k.startswith("__")]  # fmt: skip
    return out


def _function(dot: str, fn: types.FunctionType) -> List[Tuple[str, Any, Callable[[Any], bool]]]:
    out: List[Tuple[str, Any, Callable[[Any], bool]]] = []
    for var, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try:
            out.append((dot + var, cell.cell_contents, _put_cell(cell)))
        except ValueError:  # an empty cell
            continue
    for k, v in (fn.__kwdefaults__ or {}).items():
        out.append((dot + k, v, _put_item(fn.__kwdefaults__, k)))
    now = list(fn.__defaults__ or ())
    out += [(f"{dot}default{k}", v, _put_tuple(tuple, now, k, _put_attr(fn, "__defaults__"))) for k, v in enumerate(now)]
    # the globals that the code names, and no others: a module's whole namespace would drag in the world
    for k in fn.__code__.co_names:
        v = fn.__globals__.get(k)
        if isinstance(v, (torch.Tensor, torch.nn.Module, list, dict, tuple)) or (
            isinstance(v, types.FunctionType) and v.__module__ == fn.__module__
        ):
            out.append((k, v, _put_item(fn.__globals__, k)))
    inner = getattr(fn, "__wrapped__", None)
    if inner is not None:
        out.append((dot.rstrip("."), inner, _nowhere))
    return out


def _dict_of(obj: Any, table: str) -> Dict[str, Any]:
    try:
        return dict(getattr(obj, table))
    except Exception:  # a ScriptModule keeps no Python dicts; its named_* views are used instead
        named = {"_parameters": "named_parameters", "_buffers": "named_buffers", "_modules": "named_children"}[table]
        kw = {} if table == "_modules" else {"recurse": False}
        try:
            return dict(getattr(obj, named)(**kw))
        except Exception:  # user code: an odd module is simply not walked further
            return {}


def _nowhere(_: Any) -> bool:
    return False


def _put_item(box: Any, k: Any) -> Callable[[Any], bool]:
    def put(new: Any) -> bool:
        box[k] = new
        return True

    return put


def _put_tuple(kind: Any, now: List[Any], k: int, put: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A tuple is made anew with its ``k``-th item replaced, and put where it was; ``now`` is what its items are by now."""

    def put_item(new: Any) -> bool:
        before, now[k] = now[k], new
        try:
            done = put(kind._make(now) if hasattr(kind, "_make") else kind(now))
        except TypeError:  # a tuple of a kind that is not made of its items
            done = False
        if not done:
            now[k] = before
        return done

    return put_item


def _put_args(partial: Any) -> Callable[[Any], bool]:
    def put(new: Any) -> bool:
        partial.__setstate__((partial.func, tuple(new), partial.keywords, vars(partial)))
        return True

    return put


def _put_class(cls: type, k: str) -> Callable[[Any], bool]:
    def put(new: Any) -> bool:
        try:
            setattr(cls, k, new)
        except (AttributeError, TypeError):
            return False
        return True

    return put


def _put_attr(obj: Any, k: str) -> Callable[[Any], bool]:
    def put(new: Any) -> bool:
        try:
            object.__setattr__(obj, k, new)
        except (AttributeError, TypeError):
            return False
        return True

    return put


def _put_cell(cell: Any) -> Callable[[Any], bool]:
    def put(new: Any) -> bool:
        cell.cell_contents = new
        return True

    return put


def _put_module(mod: torch.nn.Module, table: str, k: str) -> Callable[[Any], bool]:
    def put(new: Any) -> bool:
        d = getattr(mod, table)
        if table == "_parameters" and not isinstance(new, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=bool(d[k].requires_grad))
        try:
            d[k] = new
        except TypeError:
            return False
        return True

    return put
