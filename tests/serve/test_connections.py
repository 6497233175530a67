"""Silent and half-spoken connections: they are closed in time, and whoever asks something is served beside them."""

import builtins
import contextlib
import http.client
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time

import pytest

from clearhead.experiments.tracing import trace
from clearhead.serve.connections import FULL, MOST_HEAD, Connection, connection_class
from clearhead.serve.limits import Limits
from tests.serve import api_serving
from tests.serve.conftest import Client, serving

PATIENCE = 120.0
"""Seconds that anything may take on a busy machine: nothing here is a statement about speed."""


def come_true(condition):
    """Wait until a condition holds; return whether it came to that."""
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def answered(ask):
    """Return what a client is answered; where a short deadline ended its connection before it spoke, it asks again."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except ConnectionError:
            if time.monotonic() > end:
                raise


@contextlib.contextmanager
def silent(port, count, said=b""):
    """Connections that say so much and then wait."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
            one.sendall(said)
            made.append(one)
        yield made


def closed(sockets, wanted=None):
    """Wait until the server has closed so many of these, or all; return how many. What it says is passed over."""
    wanted = len(sockets) if wanted is None else wanted
    waiting, end = {one.fileno(): one for one in sockets}, time.monotonic() + PATIENCE
    poll = select.poll()
    for number in waiting:
        poll.register(number, select.POLLIN)
    gone = 0
    while gone < wanted and time.monotonic() < end:
        for number, _ in poll.poll(100):
            try:
                said = waiting[number].recv(4096)
            except ConnectionError:
                said = b""
            if not said:
                poll.unregister(number)
                del waiting[number]
                gone += 1
    return gone


def kept_open(port):
    """A client with one connection for all that it asks."""
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE))


HALVES = {
    "nothing": b"",
    "half a line": b"GET /x",
    "half a head": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-",
}


@pytest.mark.parametrize("said", HALVES.values(), ids=HALVES)
def test_half_a_request_is_closed_after_a_deadline(classifier, tmp_path, said):
    with serving(classifier, tmp_path / "static", limits=Limits(head=0.5)) as server:
        with silent(server.place.port, 5, said) as sockets:
            assert closed(sockets) == 5
        assert answered(lambda: Client(server).get("api/health")) == (200, {"ok": True})


def test_half_of_a_second_request_is_closed_too(classifier, tmp_path):
    with (
        serving(classifier, tmp_path / "static", limits=Limits(head=0.5)) as server,
        silent(server.place.port, 1, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") as [one],
    ):
        assert one.recv(4096).startswith(b"HTTP/1.1 401")
        one.sendall(b"GET / HT")
        assert closed([one]) == 1  # uvicorn by itself closes what is silent after a reply, but not half a request


def test_the_deadline_is_not_put_off_by_every_byte(classifier, tmp_path):
    with (
        serving(classifier, tmp_path / "static", limits=Limits(head=0.5)) as server,
        silent(server.place.port, 1, b"GET / HTTP/1.1\r\n") as [one],
    ):
        said = 0
        with contextlib.suppress(ConnectionError):
            while said < 2000:
                one.sendall(b"X-A: b\r\n")
                said += 1
                time.sleep(0.05)
    assert said < 2000


@pytest.mark.slow
def test_an_answer_that_takes_longer_than_the_deadline_comes(classifier, tmp_path, monkeypatch):
    def slow(*args, **kwargs):
        time.sleep(1)
        return trace(*args, **kwargs)

    monkeypatch.setattr("clearhead.serve.questions.trace.trace", slow)
    with serving(classifier, tmp_path / "static", limits=Limits(head=0.3)) as server:
        assert answered(lambda: Client(server).post("api/trace", {"source": "red cat"}))[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("more", [False, True], ids=["one request", "and requests after it"])
def test_a_reply_that_is_not_read_is_given_up(classifier, tmp_path, more, capfd):
    static = tmp_path / "static"
    with serving(classifier, static, limits=Limits(reading=0.5)) as server:
        (static / "large.bin").write_bytes(bytes(30_000_000))
        request = f"GET /{server.place.token}/large.bin HTTP/1.1\r\nHost: localhost:{server.place.port}\r\n\r\n"
        with silent(server.place.port, 1, request.encode()) as [one]:
            if more:  # a client may send, and yet not read
                assert come_true(
                    lambda: any(each.flow.write_paused for each in server.uvicorn.server_state.connections)
                )
                one.sendall(request.encode() * 3)
            assert come_true(lambda: not server.uvicorn.server_state.connections)
    assert capfd.readouterr().err == ""


def test_silent_connections_make_room_for_those_who_ask(classifier, tmp_path):
    limits = Limits(connections=50, head=PATIENCE, idle=PATIENCE)  # so that none is closed but to make room
    with serving(classifier, tmp_path / "static", limits=limits) as server, kept_open(server.place.port) as existing:
        health = f"/{server.place.token}/api/health"
        for _ in range(2):
            with silent(server.place.port, 150) as sockets:
                assert closed(sockets, 90) >= 90
                existing.request("GET", health)
                assert existing.getresponse().read()
                assert Client(server).get("api/health") == (200, {"ok": True})
                assert come_true(lambda: len(server.uvicorn.server_state.connections) <= 51)


def test_where_all_are_being_answered_one_more_is_told_so(classifier, tmp_path, monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()

    def waits(*args, **kwargs):
        begun.set()
        assert goes_on.wait(PATIENCE)
        return trace(*args, **kwargs)

    monkeypatch.setattr("clearhead.serve.questions.trace.trace", waits)
    with serving(classifier, tmp_path / "static", limits=Limits(connections=1)) as server:
        client, found = Client(server), []
        first = threading.Thread(target=lambda: found.append(client.post("api/trace", {"source": "red cat"})[0]))
        first.start()
        assert begun.wait(PATIENCE)
        with socket.create_connection(("127.0.0.1", server.place.port), timeout=PATIENCE) as one:
            assert one.makefile("rb").read() == FULL
        goes_on.set()
        first.join(PATIENCE)
    assert found == [200]


def test_the_refusal_says_how_long_it_is():
    head, _, body = FULL.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}\r\n".encode() in head


def test_nonsense_after_a_reply_leaves_no_traceback(classifier, tmp_path, capfd):
    with serving(classifier, tmp_path / "static") as server:
        head = f"POST /{server.place.token}/api/trace HTTP/1.1\r\nHost: localhost:{server.place.port}\r\n"
        kind = "Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.place.port), timeout=PATIENCE) as one:
                one.sendall((head + kind).encode())
                assert one.recv(4096).startswith(b"HTTP/1.1 415")
                one.sendall(b"zz\r\nnonsense\r\n")
                assert closed([one]) == 1
        assert Client(server).get("api/health") == (200, {"ok": True})
    assert capfd.readouterr().err == ""


SERVES = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), int(sys.argv[3])))
from clearhead.serve.explorer import Explorer
from clearhead.serve.explorer_routes import ExplorerPages
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Tracebacks
from clearhead.serve.server import Server
from clearhead.training.run import load
pages = ExplorerPages(Explorer(load(sys.argv[1], device="cpu")), Path(sys.argv[2]))
# for a client that a busy machine keeps waiting
server = Server(pages, limits=Limits(idle=600.0), logs=Tracebacks())
print(server.place.page, flush=True)
server.run()
"""


@contextlib.contextmanager
def own_process(run, folder, files):
    """A server in a process that may have so many files open."""
    folder.mkdir()
    (folder / "index.html").write_text("page")
    command = [sys.executable, "-c", SERVES, str(run.folder.path), str(folder), str(files)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "err").open("wb") as err, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            _, _, where, token, _ = process.stdout.readline().split("/")
            yield int(where.split(":")[1]), token
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("files", "count"),
    [(256, 300), pytest.param(1024, 1100, marks=[pytest.mark.slow, pytest.mark.thorough])],
    ids=["300", "1100"],
)
@pytest.mark.slow
def test_silent_connections_neither_stop_it_nor_fill_the_terminal(classifier, tmp_path, files, count):
    """With the usual limit of 1,024 files, 1,100 of them stopped it before, and wrote 41 MB of tracebacks."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > count + 100
    with own_process(classifier, tmp_path / "static", files) as (port, token), kept_open(port) as existing:
        for _ in range(2):
            existing.request("GET", f"/{token}/api/health")
            assert existing.getresponse().read() == b'{"ok":true}'
        with silent(port, count):
            for _ in range(20):
                existing.request("GET", f"/{token}/api/health")
                assert existing.getresponse().read() == b'{"ok":true}'
            with kept_open(port) as other:
                other.request("GET", f"/{token}/api/run")
                assert other.getresponse().status == 200
    assert (tmp_path / "static" / "err").read_text() == ""


@pytest.fixture(params=["httptools", "h11"])
def parser(request, monkeypatch):
    """The parser that requests are read by."""
    if request.param == "httptools":
        pytest.importorskip("httptools")
        return request.param
    real = builtins.__import__

    def without(name, *rest, **named):
        if "httptools" in name:
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    return request.param


def read_all(connection):
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            found += piece
    return found


def test_h11_is_there_where_httptools_is_not(parser):
    assert (connection_class() is Connection) == (parser == "h11")


def test_wrong_requests_are_refused_and_silent_ones_closed(parser, api_runs):
    limits = Limits(head=0.3)
    with api_serving.serving([api_runs["classifier"]], names=["it"], limits=limits) as client:
        assert client.answer("/v1/classify", input="a cat")["data"]
        for said in (b"X-Long: " + b"x" * (2 * MOST_HEAD), b"\0\xff: y\r\n\r\n"):
            with client.raw("GET /healthz HTTP/1.1", said) as connection:
                assert read_all(connection).startswith(b"HTTP/1.1 4")
        with client.raw("GET /healthz HTTP/1.1", b"X-") as connection:  # half a head, and then nothing
            assert read_all(connection) == b""
        one = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % client.port
        many = b"\r\n".join([b"", one, one, one + b"Connection: close\r\n", b""])  # or it stays open for half a minute
        with client.raw("GET /healthz HTTP/1.1", many) as connection:
            assert read_all(connection).count(b"200 OK") == 4
        large = b"x" * (3 * MOST_HEAD)
        head = f"POST /v1/classify HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(large)}"
        with client.raw(f"{head}\r\nConnection: close", b"\r\n" + large) as connection:
            assert b"not JSON" in read_all(connection), "a long body is no long head"


def half_body(port, token):
    """The head of a request, and the first byte of its body."""
    head = f"POST /{token}/api/trace HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: 100\r\n\r\n{{".encode()


@pytest.mark.parametrize("limits", [{"bodies": 20, "connections": 200}, {"connections": 30}], ids=["bodies", "all"])
def test_half_sent_bodies_make_room_for_those_who_ask(parser, classifier, tmp_path, limits):
    """They counted as being answered: with as many as there may be connections, nobody else was let in."""
    limits = Limits(arrival=PATIENCE, head=PATIENCE, idle=PATIENCE, **limits)
    with serving(classifier, tmp_path / "static", limits=limits) as server, kept_open(server.place.port) as existing:
        client, said = Client(server), half_body(server.place.port, server.place.token)
        for _ in range(2):
            with silent(server.place.port, 60, said) as sockets:
                assert closed(sockets, 39) >= 39
                for path in ("api/health", "api/run"):
                    assert client.get(path)[0] == 200
                assert client.post("api/trace", {"source": "red cat"})[0] == 200
                existing.request("GET", f"/{server.place.token}/api/health")
                assert existing.getresponse().read() == b'{"ok":true}'


def test_a_body_that_comes_in_pieces_is_read(parser, classifier, tmp_path):
    with serving(classifier, tmp_path / "static", limits=Limits(bodies=1)) as server:
        body = b'{"source": "red cat"}'
        said = half_body(server.place.port, server.place.token).replace(b"Content-Length: 100", b"Content-Length: 21")
        with silent(server.place.port, 1, said) as [one]:
            for at in range(1, len(body), 5):
                one.sendall(body[at : at + 5])
                time.sleep(0.01)
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
