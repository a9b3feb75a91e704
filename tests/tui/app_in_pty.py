"""Run by the pty tests as a process of its own: the real app on a scripted runner. Arguments: folder, options as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from scripted import Made, ScriptedRunner, workload_file


class Noted(ScriptedRunner):
    """Leaves a file when it is closed, so that another process can see it."""

    folder: Path

    def close(self) -> None:
        super().close()
        (self.folder / "closed").write_text(str(self.closed))


def main() -> int:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    Noted.folder = folder
    made = Made(**options.get("runner", {}))
    made.kind = Noted
    from sparsetui.tui.app import run

    if options.get("crash"):
        from sparsetui.tui.screens.investigate import Investigate

        def crash(self: Investigate) -> None:
            raise RuntimeError("a handler broke")

        Investigate.do_pause = crash  # type: ignore[method-assign]
    return run(store=folder / "store", workload=workload_file(folder), runner_factory=made, **options.get("run", {}))


if __name__ == "__main__":
    code = main()
    print(f"exit code {code}", flush=True)
    sys.exit(code)
