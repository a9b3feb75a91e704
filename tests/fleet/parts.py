"""Surveys and parts of a matrix as nodes send them, with figures drawn instead of measured."""

from __future__ import annotations

from typing import Any

from recorded import TAGS

from sparsetui.fleet.records import Part, Signature, Survey, lock_id

SIGNATURES = ("640 x 512, width 48", "96 x 640, width 48", "16 x 64, width 48")
CODE = "c0de"


def lock(host: str, **tags: str) -> dict[str, dict[str, str]]:
    own = {**TAGS, **tags, "affinity": f"of {host}"}
    return {"failing": own, "comparator": own}


def survey(host: str, signatures: tuple[str, ...] = SIGNATURES, **tags: str) -> Survey:
    found = lock(host, **tags)
    made = tuple(Signature(name, 1, 2, float(1000 - i), (0.9,)) for i, name in enumerate(signatures))
    return Survey(host, lock=found, lock_id=lock_id(found), source="comparator", how="its own zeros", signatures=made)


def signature(host: str, name: str, speedup: float = 2.0, code: str = CODE, **tags: str) -> Part:
    """``csr-int32`` runs at ``speedup`` times dense, and coo at a hundredth, where it is timed once."""
    near = [speedup * (1 + 0.01 * (i % 3)) for i in range(8)]
    points: list[dict[str, Any]] = [
        {"sparsity": s, "speedup": {"csr-int32": [x * s / 0.9 for x in near], "coo": [0.01]}} for s in (0.5, 0.9, 0.98)
    ]
    body = {
        "sparsity": 0.9,
        "layers": [{"name": "0.weight", "signature": name, "ms": {"dense": 0.5, "csr-int32": 0.25}}],
        "prepared": [{"name": "0.weight", "calls": 2, "target": 0.9}],
        "curve": {"signature": name, "name": "0.weight", "points": points},
    }
    return Part(host, lock_id(lock(host, **tags)), name, body=body, code=code, seconds=2.0)


def whole(host: str, ratio: float = 0.5, code: str = CODE, **tags: str) -> Part:
    def number(value: float, unit: str) -> dict[str, Any]:
        return {"value": value, "ci": [value * 0.98, value * 1.02], "n": 9, "unit": unit, "quality": "measured"}

    rows = [
        {
            "name": name,
            "kind": "unstructured",
            "p50": number(2.0 * r, "ms"),
            "against_dense": number(r, "×"),
            "risk": "low",
        }
        for name, r in (("dense", 1.0), ("csr-int32", ratio))
    ]
    body = {"summary": "2 formats; the fastest single one is csr-int32", "rows": rows}
    return Part(host, lock_id(lock(host, **tags)), body=body, code=code, seconds=5.0)
