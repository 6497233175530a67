"""Commands of a page as forks of one process: `python -m clearhead` takes three seconds to import torch, a fork none.

A server imports the package once. The programs `clearhead` and `python`, in a folder `bin`, are small clients: each
sends its arguments, folder, environment and streams, and ends with the exit code that comes back. Everything else is as
in a process of its own, since it is one.

    python forked_commands.py HOME      # the server, at HOME/socket; it removes HOME when its parent has ended
"""

import atexit
import contextlib
import json
import os
import runpy
import shutil
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path

CLIENT = """#!{python} -IS
import json, os, socket, sys
asked = {before!r} + sys.argv[1:]
if asked[:1] != ["-m"]:  # a bounded process of the package's, which sets limits of its own and is killed
    os.execv({python!r}, [{python!r}, *asked])
server = socket.socket(socket.AF_UNIX)
server.connect({socket!r})
asked = json.dumps([asked, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
server.sendall(asked)
sys.exit(int.from_bytes(server.recv(1) or b"\\1", "big"))
"""
MODULES = (
    *("clearhead.cli", "clearhead.training", "clearhead.experiments.comparing", "clearhead.experiments.workers"),
    *("clearhead.attention.grid", "clearhead.cli.train", "clearhead.cli.compare", "torch._dynamo", "sacrebleu"),
)
"""What every command would import, torch._dynamo among it: an optimiser does, for two seconds."""
MOST_STEPS = 2
"""Steps that a training is timed in: a page trains for ten."""


def install(folder: Path, address: Path) -> None:
    """Write the programs into a folder. They wait at `address` for a server."""
    for name, before in (("clearhead", ["-m", "clearhead"]), ("python", [])):
        program = folder / name
        program.write_text(CLIENT.format(python=sys.executable, socket=str(address), before=before), encoding="utf-8")
        program.chmod(0o755)


def serve(home: str) -> None:
    """Fork for every client, as long as the parent lives."""
    parent = os.getppid()
    for name in MODULES:
        __import__(name)
    sketch()
    signal.signal(signal.SIGCHLD, wait_for_ended)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{home}/socket")
        server.listen()
        server.settimeout(1)
        print("ready", flush=True)
        while os.getppid() == parent:
            try:
                client, _ = server.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                server.close()
                os._exit(answer(client, f"{home}/bin/python"))
            client.close()
    shutil.rmtree(home)


def sketch() -> None:
    """Cut short what takes longer than a page's trainings, and is tested elsewhere.

    An empty picture is written where a command would draw curves, a training is timed in two steps instead of twelve
    (tests/training/test_timing.py), and a part is checked in eight combinations of each kernel, half of them ones that
    it serves; `make test-all` checks it in every pair.
    """
    for module, name in (
        ("clearhead.training.loop", "draw_curves"),
        ("clearhead.experiments.comparing", "draw_comparison"),
    ):
        setattr(sys.modules[module], name, lambda data, path, **_: Path(path).write_text("<svg/>", encoding="utf-8"))
    sys.modules["clearhead.training.machine"].MOST_STEPS = MOST_STEPS  # pyright: ignore[reportAttributeAccessIssue]
    if os.environ.get("HYPOTHESIS_PROFILE") != "thorough":
        sys.modules["clearhead.attention.grid"].DRAWS = 24  # pyright: ignore[reportAttributeAccessIssue]


def wait_for_ended(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def answer(client: socket.socket, python: str) -> int:
    """Become the process that the client asks for; return its exit code, and send it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, streams, _, _ = socket.recv_fds(client, 4, 3)
    asked = b""
    while len(asked) < int.from_bytes(length, "big"):
        asked += client.recv(1 << 16)
    args, folder, environment = json.loads(asked)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    sys.executable = python
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")  # a module to run is imported already
    code = run(args)
    client.sendall(bytes([code]))
    return code


def run(args: list[str]) -> int:
    """Run `python -m MODULE …` here, and return its exit code."""
    try:
        sys.argv[:] = args[1:]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


if __name__ == "__main__":
    serve(*sys.argv[1:])
