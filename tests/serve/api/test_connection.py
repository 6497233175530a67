"""Connections of the API, by httptools and by h11: what is no request is refused, and nothing of it is kept."""

import builtins
import contextlib

import pytest

from clearhead.serve.api.connection import MOST_HEAD, connection_class
from clearhead.serve.connections import Connection, Limits
from tests.serve.api.conftest import serving


@pytest.fixture(params=["httptools", "h11"])
def parser(request, monkeypatch):
    """The parser that requests are read by."""
    if request.param == "httptools":
        pytest.importorskip("httptools")
        return request.param
    real = builtins.__import__

    def without(name, *rest):
        if "httptools" in name:
            raise ImportError(name)
        return real(name, *rest)

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
    with serving([api_runs["classifier"]], names=["it"], connections=limits) as client:
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
