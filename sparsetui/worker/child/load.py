"""From an entry of a workload file to the callable or the inputs that it names."""

import difflib
import importlib
import importlib.util
import os
import sys
from typing import Any, Dict, List, Tuple

_files: Dict[str, Any] = {}  # real path -> module: builder and inputs of one file share their globals


class LoadError(Exception):
    """An entry does not lead to what it promises; the text names the entry, the place and what is missing."""


def resolve(entry: str, folder: str) -> Any:
    """The object that ``entry`` names: ``path.py:callable`` (relative to ``folder``) or ``package.module:callable``.

    Raises :class:`LoadError`; whatever the user's module raises on import passes through.
    """
    where, colon, attribute = entry.rpartition(":")
    where, attribute = where.strip(), attribute.strip()
    if not colon or not where or not attribute:
        raise LoadError("entry %r: expected path.py:callable or package.module:callable" % entry)
    if where.endswith(".py"):
        module = _from_file(entry, os.path.join(folder, os.path.expanduser(where)))
    else:
        module = _from_module(entry, where, folder)
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise LoadError(_missing(entry, module, found, part)) from None
    return found


def resolve_callable(entry: str, folder: str) -> Any:
    """As :func:`resolve`, for what must be callable."""
    found = resolve(entry, folder)
    if not callable(found):
        raise LoadError("entry %r: it is of type %s and cannot be called" % (entry, type(found).__name__))
    return found


def _missing(entry: str, module: Any, holder: Any, name: str) -> str:
    where = getattr(module, "__file__", None) or module.__name__
    names = [n for n in dir(holder) if not n.startswith("_")]
    near = difflib.get_close_matches(name, names, 1, 0.5)
    if near:
        hint = "; did you mean %s?" % near[0]
    else:
        own = [n for n in names if getattr(getattr(holder, n, None), "__module__", None) == module.__name__]
        hint = "; it defines %s" % ", ".join(own[:8]) if own else "; it defines nothing"
    return "entry %r: %s has no %s%s" % (entry, where, name, hint)


def _put_first(folder: str) -> None:
    if not sys.path or sys.path[0] != folder:
        sys.path[:] = [folder] + [p for p in sys.path if p != folder]
        importlib.invalidate_caches()


def _from_file(entry: str, path: str) -> Any:
    real = os.path.realpath(path)
    if real in _files:
        return _files[real]
    if not os.path.isfile(real):
        raise LoadError("entry %r: there is no file %s" % (entry, os.path.abspath(path)))
    _put_first(os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(real))[0]
    taken = sys.modules.get(name)
    if taken is not None:
        if os.path.realpath(getattr(taken, "__file__", None) or "") == real:
            return taken
        name = "_workload_" + name  # a user's types.py must not take the place of the library's
    spec = importlib.util.spec_from_file_location(name, os.path.abspath(path))
    if spec is None or spec.loader is None:
        raise LoadError("entry %r: %s is no Python file" % (entry, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    _files[real] = module
    return module


def _from_module(entry: str, name: str, folder: str) -> Any:
    _put_first(os.path.abspath(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as why:
        # a module that it imports in turn may be missing as well; that one is the user's to see with its traceback
        if why.name and (name == why.name or name.startswith(why.name + ".")):
            raise LoadError(
                "entry %r: no module %s in %s nor in %s" % (entry, why.name, folder, sys.executable)
            ) from None
        raise


def inputs(spec: Dict[str, Any], folder: str) -> List[Tuple[Any, ...]]:
    """The argument tuples of a workload's ``[inputs]``: from its ``entry``, or one random tuple by ``shape``.

    Raises :class:`LoadError`.
    """
    if spec.get("entry"):
        return as_tuples(resolve_callable(spec["entry"], folder)(), spec["entry"])
    if spec.get("shape") is not None:
        return [_random(spec)]
    raise LoadError("inputs: neither entry nor shape is given")


def as_tuples(made: Any, entry: str) -> List[Tuple[Any, ...]]:
    """What an inputs entry returned, as a list of argument tuples.

    A lone tensor, or a lone tuple of arguments, is one input; in a list or generator a bare tensor is a 1-tuple.
    """
    import torch

    if made is None:
        raise LoadError("entry %r: it returned None; expected a list of argument tuples" % entry)
    if isinstance(made, (torch.Tensor, dict, str, bytes)) or not hasattr(made, "__iter__"):
        return [(made,)]
    if isinstance(made, tuple) and not all(isinstance(item, tuple) for item in made):
        return [made]
    listed = [item if isinstance(item, tuple) else tuple(item) if isinstance(item, list) else (item,) for item in made]
    if not listed:
        raise LoadError("entry %r: it returned no inputs; expected at least one argument tuple" % entry)
    return listed


def _random(spec: Dict[str, Any]) -> Tuple[Any, ...]:
    import torch

    name = str(spec.get("dtype", "float32"))
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise LoadError("inputs: torch %s has no dtype %r" % (torch.__version__, name))
    shape = spec["shape"]
    shapes = shape if shape and isinstance(shape[0], (list, tuple)) else [shape]
    generator = torch.Generator().manual_seed(int(spec.get("seed", 0)))
    made = []
    for sizes in shapes:
        if dtype.is_floating_point or dtype.is_complex:
            base = torch.complex64 if dtype.is_complex else torch.float32
            made.append(torch.randn(sizes, generator=generator, dtype=base).to(dtype))
        else:
            top = 2 if dtype is torch.bool else 100
            made.append(torch.randint(0, top, tuple(sizes), generator=generator).to(dtype))
    return tuple(made)
