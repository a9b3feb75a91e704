"""Start the fork server in a foreign interpreter: ``PYTHON bootstrap.py --fd N``.

That interpreter need not have this package installed, and nothing of our own environment may leak into it: the
package is loaded from its folder under its name, and ``sys.path`` is left as the service has it. The syntax here is
old on purpose, so that an interpreter which is too old can still say so in one line.
"""

# mypy: ignore-errors

import os
import struct
import sys

OLDEST = (3, 9)


def _refuse(fd, text):
    body = ('{"event": "launch_error", "message": "%s"}' % text).encode("ascii")
    os.write(fd, struct.pack(">I", len(body)) + body)


def main():
    fd = int(sys.argv[sys.argv.index("--fd") + 1])
    if sys.version_info < OLDEST:
        _refuse(fd, "it is Python %d.%d; a worker needs 3.9 or newer" % (sys.version_info[0], sys.version_info[1]))
        return 3
    here = os.path.dirname(os.path.abspath(__file__))
    # our folder came first on the path because we were run by path; a user's own wire.py or load.py must win
    if sys.path and os.path.abspath(sys.path[0] or os.getcwd()) == here:
        del sys.path[0]
    package = os.path.dirname(os.path.dirname(here))
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "sparsetui", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["sparsetui"] = module
    spec.loader.exec_module(module)
    from sparsetui.worker.child import server

    return server.main(fd)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no user code ran here, and nothing of a broken sitecustomize may delay the end
