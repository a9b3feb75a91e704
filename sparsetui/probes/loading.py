"""What a builder did to weights while it loaded them: keys that did not match, sparse tensors that were made dense."""

from __future__ import annotations

from typing import Any, Dict, List, Set

import torch

from . import optable, tensors, walk
from .mode import Mode


class Watch:
    """A context around the builder. It records the result of every ``load_state_dict`` and each decompression of a sparse
    tensor; :meth:`report` names the held weights that came out of one."""

    def __init__(self) -> None:
        self.loads: List[Dict[str, Any]] = []
        self.kept: List[Any] = []
        self.keys: Set[int] = set()
        self._mode: Any = None
        self._original: Any = None

    def __enter__(self) -> "Watch":
        watch, original = self, torch.nn.Module.load_state_dict
        self._original = original

        def load_state_dict(module: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(module, state_dict, *args, **kwargs)
            missing, unexpected = getattr(result, "missing_keys", []), getattr(result, "unexpected_keys", [])
            watch.loads.append(
                {"missing": [str(k) for k in missing][:50], "unexpected": [str(k) for k in unexpected][:50]}
            )
            return result

        setattr(torch.nn.Module, "load_state_dict", load_state_dict)  # noqa: B010 - patched while the builder runs
        self._mode = _Densify(self)
        self._mode.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._mode.__exit__(*exc)
        setattr(torch.nn.Module, "load_state_dict", self._original)  # noqa: B010

    def keep(self, t: torch.Tensor) -> None:
        """Remember a tensor that holds decompressed values; its storage stays alive so that its key stays its own."""
        k = tensors.key(t)
        if k is not None:
            self.keys.add(k)
            self.kept.append(t.untyped_storage())

    def report(self, fn: Any) -> Dict[str, Any]:
        names = [n for n, t in walk.held_tensors(fn) if t.layout == torch.strided and tensors.key(t) in self.keys]
        self.kept.clear()
        return {"loads": [r for r in self.loads if r["missing"] or r["unexpected"]], "made_dense": names}


class _Densify(Mode):  # type: ignore[no-untyped-call]
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not tensors.is_sparse(out):
            name = optable.short(optable.base_name(func))
            if name in optable.DENSIFY:
                if args and isinstance(args[0], torch.Tensor) and tensors.is_sparse(args[0]):
                    self._watch.keep(out)
            elif name in _COPIES:
                source = args[1] if name == "copy_" else args[0]
                if isinstance(source, torch.Tensor) and tensors.key(source) in self._watch.keys:
                    self._watch.keep(out)
        return out


# a decompressed weight is followed into the parameter that it is copied to
_COPIES = {"copy_", "clone", "_to_copy", "contiguous"}
