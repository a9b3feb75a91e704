"""What a release declares of its sparsity, against what its tensors hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparsetui.evidence.text import clean

#: A declared and a real zero fraction that differ by more than this do not match.
TOLERANCE = 0.01


def declared(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    """What the release says of its sparsity: compressed-tensors' config beside the file, or the file's metadata."""
    found: dict[str, Any] = {}
    config = path.with_name("config.json")
    try:
        document = json.loads(config.read_bytes()) if config.is_file() and config.stat().st_size < 50_000_000 else {}
    except (OSError, ValueError, RecursionError):
        document = {}
    if isinstance(document, dict):
        for key in ("quantization_config", "compression_config"):
            outer = document.get(key)
            inner = outer.get("sparsity_config") if isinstance(outer, dict) else None
            if isinstance(inner, dict):
                found = _claim_of(inner, f"config.json {key}.sparsity_config")
        if not found and isinstance(document.get("sparsity_config"), dict):
            found = _claim_of(document["sparsity_config"], "config.json sparsity_config")
    if not found:
        for key, value in metadata.items():
            if "sparsity" in key.lower():
                try:
                    number = float(value.strip().rstrip("%")) / (100 if value.strip().endswith("%") else 1)
                except ValueError:
                    continue
                if 0 <= number <= 1:
                    found = {"sparsity": number, "source": f"metadata {clean(key, 40)}"}
    return found


def _claim_of(config: dict[str, Any], source: str) -> dict[str, Any]:
    out: dict[str, Any] = {"source": source}
    sparsity = config.get("global_sparsity")
    if isinstance(sparsity, int | float) and not isinstance(sparsity, bool) and 0 <= sparsity <= 1:
        out["sparsity"] = float(sparsity)
    for key in ("format", "sparsity_structure"):
        if isinstance(config.get(key), str):
            out[key.removeprefix("sparsity_")] = clean(config[key], 40)
    for key in ("targets", "ignore"):
        if isinstance(config.get(key), list):
            out[key] = [clean(x, 80) for x in config[key][:200]]
    return out


def weights(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The matrices among the tensors: what pruning could have touched."""
    return [t for t in tensors if "structure" in t and t.get("zeros") is not None]


def claims(said: dict[str, Any], tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Declared against real, one line each; ``holds`` is the answer."""
    ignored = set(said.get("ignore", []))
    chosen = [t for t in weights(tensors) if not any(t["name"].removesuffix(".weight") == i for i in ignored)]
    out: list[dict[str, Any]] = []
    if "sparsity" in said:
        # the declared figure may count all weights or only those that were pruned: either may hold
        sparse = [t for t in chosen if t["zeros"] > TOLERANCE]
        every, pruned = zeros_of(chosen), zeros_of(sparse)
        near = [z for z in (every, pruned) if z is not None and abs(z - said["sparsity"]) <= TOLERANCE]
        out.append({
            "claim": f"sparsity {said['sparsity']:.1%}",
            "real": every,
            "of_the_pruned": pruned,
            "holds": bool(near),
        })  # fmt: skip
    pattern = said.get("structure")
    if pattern in ("2:4", "4:8", "1:4"):
        sparse = [t for t in chosen if t["zeros"] > TOLERANCE]
        worst = min((t["structure"]["nm"][pattern]["along_rows"] for t in sparse), default=None)
        out.append({"claim": f"pattern {pattern} along the reduction axis", "real": worst, "holds": worst == 1.0})
    return out


def zeros_of(tensors: list[dict[str, Any]]) -> float | None:
    count = sum(t["elements"] for t in tensors)
    return sum(t["zeros"] * t["elements"] for t in tensors) / count if count else None


def masks(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Weights kept as ``_orig`` and ``_mask`` (torch.nn.utils.prune): the zeros are the mask's, if it is applied on load."""
    by_name = {t["name"]: t for t in tensors}
    out = []
    for name, mask in by_name.items():
        original = by_name.get(name.removesuffix("_mask") + "_orig")
        if name.endswith("_mask") and original is not None:
            out.append(
                {
                    "weight": name.removesuffix("_mask"),
                    "zeros_of_mask": mask.get("zeros"),
                    "zeros_of_original": original.get("zeros"),
                    "note": "the mask lies beside the weight and must be applied on load",
                }
            )
    return out
