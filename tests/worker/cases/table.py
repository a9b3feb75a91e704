"""Verbs for the tests: the replica looks them up as it does the probes' own."""

import os
import subprocess
import sys
import threading
import time


def look(context, args):
    import torch

    def one(value):
        return list(value.shape) if isinstance(value, torch.Tensor) else value

    return {
        "inputs": [[one(v) for v in item] for item in context.inputs],
        "dtypes": [[str(getattr(v, "dtype", "")) for v in item] for item in context.inputs],
        "sums": [float(item[0].double().sum()) for item in context.inputs],
        "cwd": os.getcwd(),
        "path0": sys.path[0],
        "ours_on_path": [p for p in sys.path if "worker" + os.sep + "child" in p],
        "resolved": context.state["resolve"]("good.py:NAME_OF_IT")(),
        "threads": torch.get_num_threads(),
        "env": {k: os.environ.get(k) for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MARK")},
        "main": getattr(sys.modules["__main__"], "__file__", None),
        "modules": sorted(m for m in sys.modules if m in ("msgspec", "psutil", "textual", "sparsetui.worker.handle")),
        "stdin": os.readlink("/proc/self/fd/0"),
    }


def progress(context, args):
    for i in range(int(args["n"])):
        context.emit({"step": i})
    return {"n": args["n"]}


def stall(context, args):
    context.emit({"step": "\x1b[2Jlast"})
    time.sleep(600)


def state(context, args):
    context.state["n"] = context.state.get("n", 0) + 1
    return {"n": context.state["n"]}


def numpy_answer(context, args):
    import numpy as np

    return {"scalar": np.float32(0.5), "array": np.arange(3), "nan": float("nan"), "odd": "\udc80"}


def large(context, args):
    return {"text": "x" * int(args["n"])}


def no_answer(context, args):
    return {"cyclic": args.setdefault("self", args)}


def exits(context, args):
    sys.exit("done here")


def start_daemon(context, args):
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
         "print(os.getpid(), flush=True)\nimport time; time.sleep(600)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    pid = int(child.stdout.readline())
    return {"pid": pid}


def endless_thread(context, args):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return {}


def fork_that_holds_on(context, args):
    """A forked child that lives on and keeps our message socket open, while we die."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(5)


VERBS = {f.__name__: f for f in (look, progress, stall, state, numpy_answer, large, no_answer, exits, start_daemon,
                                 endless_thread, fork_that_holds_on)}  # fmt: skip
