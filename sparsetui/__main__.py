"""The entry of the ``sparsetui`` command. ``--version`` answers before anything heavy is imported."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from sparsetui import __version__

        print(f"sparsetui {__version__}")
        return
    from sparsetui.cli.entry import run

    sys.exit(run())


if __name__ == "__main__":
    main()
