"""A real server in a process of its own, with the API and the explorer, and raw requests to it.

Its runs: `translator`, `classifier`, `writer`, and `talker`, whose template never ends and whose model never answers.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.training import small_runs

HOST = "127.0.0.1"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
RUNS = {
    "translator": small_runs.translating,
    "classifier": small_runs.classifying,
    "talker": small_runs.documents,
}
SERVES = """
import json, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.addaudithook(lambda event, args: event == "socket.connect" and print("it connects to", args[1], file=sys.stderr))
from clearhead.serve.api.routes import Api
from clearhead.serve.api.served import batched
from clearhead.serve.explorer import Explorer
from clearhead.serve.explorer_routes import ExplorerPages
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Tracebacks
from clearhead.serve.server import Server
from clearhead.text.templates import ChatTemplate
from clearhead.training.run import load
home, token, limits, endless = Path(sys.argv[1]), sys.argv[2] or None, json.loads(sys.argv[3]), sys.argv[4]
runs = [load(home / name / "run", device="cpu") for name in ("translator", "classifier", "talker", "talker")]
object.__setattr__(runs[2].folder, "chat", lambda: ChatTemplate(endless))
for part in runs[2].model.modules():
    part.register_forward_pre_hook(lambda *_: time.sleep(60))
api = Api(runs, names=("translator", "classifier", "talker", "writer"), scheduler=batched(32), model_threads=1)
pages = [ExplorerPages(Explorer(runs[0]), home / "static")] if token else []
server = Server(api, *pages, token=token, limits=Limits(**limits), logs=Tracebacks())
print(server.place.port, flush=True)
server.run()
"""


class Place(NamedTuple):
    """Where the server under attack is."""

    port: int
    token: str
    process: int
    stderr: Path


def make_runs(home: Path) -> Path:
    """Train the runs that are served, and write a page; beside the page lies a file that is none of the server's."""
    for name, kind in RUNS.items():
        (home / name).mkdir(parents=True)
        small_runs.made_in(home / name, kind)
    (home / "static").mkdir()
    (home / "static" / "index.html").write_text("<!doctype html>", encoding="utf-8")
    (home / "secret.txt").write_text("swordfish", encoding="utf-8")
    return home


@contextlib.contextmanager
def served(home: Path, *, open_to_all: bool = False, limits: Mapping[str, float] | None = None) -> Iterator[Place]:
    """Serve the runs in a folder until the context ends; `open_to_all`: the API alone, without a token."""
    token, stderr = "" if open_to_all else secrets.token_urlsafe(24), home / "stderr"
    command = [sys.executable, "-c", SERVES, str(home), token, json.dumps(limits or {}), ENDLESS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        stderr.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the server did not start: {stderr.read_text(errors='replace')[-2000:]}")
        place = Place(int(line), token, process.pid, stderr)
        try:
            wait_until_ready(place)
            yield place
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def wait_until_ready(place: Place, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while status_of(exchange(place, request(place, "GET", "/readyz"))) != 200:
        if time.monotonic() > until:
            raise TimeoutError(f"the server is not ready after {seconds:g} s")
        time.sleep(0.05)


def request(place: Place, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    """Return the bytes of a request; a header that is "" is left out, and `Host` is the server's unless it is given."""
    fields = {"Host": f"{HOST}:{place.port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body))} | fields
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace") + (body or b"")


def ask(place: Place, path: str, /, **asked: object) -> bytes:
    """Return the bytes of a POST that is answered: with the token, where there is one."""
    bearer = f"Bearer {place.token}" if place.token else ""
    return request(place, "POST", path, json.dumps(asked).encode(), Authorization=bearer)


def exchange(place: Place, data: bytes, *, seconds: float = 60.0) -> bytes:
    """Send bytes on a connection of their own; return the reply, b"" where there is none within so many seconds."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, place.port), timeout=seconds) as connection:
        connection.sendall(data)
        return read_reply(connection, has_body=not data.startswith(b"HEAD "))
    return b""


def read_reply(connection: socket.socket, *, has_body: bool = True) -> bytes:
    """Return a reply, up to the length that it announces or the end of the connection."""
    found = b""
    while b"\r\n\r\n" not in found:
        if not (piece := connection.recv(65536)):
            return found
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    lines = [line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:]]
    length = int(next((value for name, value in lines if name == b"content-length"), b"0"))
    while has_body and len(body) < length and (piece := connection.recv(65536)):
        body += piece
    return head + b"\r\n\r\n" + body


class Line:
    """A connection that stays open, and is made anew when the server has closed it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes) -> tuple[int, bytes]:
        """Return the status and the body of a reply; OSError or IncompleteReadError where there is none."""
        if self.streams is None:
            self.streams = await asyncio.open_connection(HOST, self.place.port)
        reader, writer = self.streams
        try:
            writer.write(data)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await read_body(reader, head)
        except BaseException:
            self.close()
            raise
        if b"\r\nconnection: close" in head:
            self.close()
        return status_of(head), body

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Return the body of a reply, which has its length in the head or comes in chunks."""
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return body
    length = next((one for one in head.split(b"\r\n") if one.startswith(b"content-length:")), b":0")
    return await reader.readexactly(int(length.split(b":")[1]))


def status_of(reply: bytes) -> int:
    """Return the status of a reply, 0 where there is none.

    >>> status_of(b"HTTP/1.1 200 OK"), status_of(b"")
    (200, 0)
    """
    words = reply.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def processes_of(number: int) -> list[int]:
    """Return a process and all that it has started, and those have."""
    found = [number]
    for one in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                found += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
    return found


def outlived(family: list[int], patience: float) -> str:
    """Return which processes are still at work so many seconds after they should have ended, or ""."""
    until = time.monotonic() + patience
    while living := [number for number in family if is_at_work(number)]:
        if time.monotonic() > until:
            return f"{len(living)} of {len(family)} processes are still at work {patience:g} s after the kill"
        time.sleep(0.05)
    return ""


def is_at_work(number: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def processor_time(number: int) -> float:
    """Return the seconds of processor time that a process has used: a busy machine does not change them."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(number: int) -> float:
    """Return the MB of memory of a process and all it has started; what they share is counted once (PSS)."""
    total = 0
    for one in processes_of(number):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1000
