"""Keeps of a session what playbooks look at: ``python tests/playbook/record.py SESSION_FOLDER NAME`` writes ``recorded/NAME.json``.

It is the session's own state, redacted by the tool, without what no fact is computed from.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from sparsetui.report.redact import redacted
from sparsetui.session.state import SessionState
from sparsetui.session.store import Store

FINDING = ("stage", "mechanism", "confidence", "material", "owner")
ROW = ("name", "kind", "p50", "risk")


def slim(state: SessionState) -> dict[str, Any]:
    raw: dict[str, Any] = msgspec.to_builtins(redacted(state))
    kept = {k: raw[k] for k in ("spec", "lock", "metrics", "budget", "native", "result") if raw[k]}
    kept["phases"] = [
        {"stage": p["stage"], "name": p["name"], "state": p["state"]} for p in raw["phases"] if p["state"] == "done"
    ]
    kept["evidence"] = [{k: e[k] for k in ("id", "stage", "probe", "source")} for e in raw["evidence"]]
    kept["findings"] = [{**{k: f[k] for k in FINDING}, "summary": ""} for f in raw["findings"]]
    kept["ops"] = [o for o in raw["ops"] if o["eligible"] and o["variant"] == "failing"]
    sections = {}
    if matrix := raw["sections"].get("matrix"):
        sections["matrix"] = {"rows": [{k: r[k] for k in ROW} for r in matrix["rows"]]}
    if replay := raw["sections"].get("replay"):
        figures = {v: {q: f[q] for q in ("p50", "p95", "p99")} for v, f in replay["variants"].items()}
        sections["replay"] = {"passed": replay["passed"], "variants": figures}
    kept["sections"] = sections
    if result := kept.get("result"):
        kept["result"] = {"session": "", "verdict": result["verdict"]}
    spec = kept.get("spec", {})
    kept["spec"] = {"spec": spec.get("spec", {})}
    for table in (kept.get("native") or {}).get("paths", ()):
        table.update(symbols=[], callers=[])
    return kept


def main(folder: str, name: str) -> None:
    path = Path(folder)
    out = Path(__file__).parent / "recorded" / f"{name}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(msgspec.json.encode(slim(Store(path.parent).open(path.name).state())) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
