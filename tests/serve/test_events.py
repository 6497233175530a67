"""Clients that hang up, read slowly or not at all: their place is freed, and the batch never waits for them."""

import asyncio
import json
import socket
import time

import pytest

from clearhead.serve.errors import ApiError, ClientGone
from clearhead.serve.events import Outgoing, answer_in_time
from clearhead.serve.limits import Limits
from tests.serve.api_serving import eventually, run_apart


def request_bytes(asked):
    body = json.dumps(asked).encode()
    return f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_place(slow, stream):
    client = slow(pause=0.01)
    asked = {"prompt": "a", "max_tokens": 4000, "stream": stream}
    with client.raw("POST /v1/completions HTTP/1.1", request_bytes(asked)) as one:
        eventually(lambda: client.metric("sequences_running") == 1)
        if stream:
            assert one.recv(100)
    eventually(lambda: client.metric("sequences_running") == 0)
    eventually(lambda: client.metric("pending") == 0)
    assert client.metric("disconnects_total") == 1
    assert client.post("/v1/completions", prompt="a", max_tokens=3)[0] == 200


@pytest.mark.slow
def test_a_reader_that_reads_nothing_is_dropped_and_holds_nobody_up(slow):
    client = slow(pause=0.0, limits=Limits(unread=20_000))
    asked = {"prompt": "a", "max_tokens": 4096, "stream": True, "n": 8}
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", client.port))
        one.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n".encode() + request_bytes(asked)
        )
        assert client.post("/v1/completions", prompt="a", max_tokens=3)[0] == 200
        eventually(lambda: client.metric("disconnects_total") == 1)
        eventually(lambda: client.metric("sequences_running") == client.metric("pending") == 0)
        assert client.metric("steps_total") < 4096


def test_a_slow_reader_gets_all_of_it(slow):
    client = slow(pause=0.0)
    asked = {"prompt": "a", "max_tokens": 300, "stream": True}
    with client.raw("POST /v1/completions HTTP/1.1", request_bytes(asked)) as one:
        eventually(lambda: client.metric("generated_tokens_total") == 300)
        time.sleep(0.05)
        got = b""
        while b"[DONE]" not in got:
            got += one.recv(2000)
    events = [json.loads(line[6:]) for line in got.decode().splitlines() if line.startswith("data: {")]
    assert len("".join(event["choices"][0]["text"] for event in events)) == 300


def test_outgoing_keeps_so_much_and_no_more():
    async def fill():
        out = Outgoing(30)
        out.put_bytes(b"x" * 20)
        assert await out.take() == b"x" * 20
        out.put_bytes(b"y" * 30)
        with pytest.raises(ClientGone):
            out.put_bytes(b"z")
        out.close()
        return await out.take(), await out.take()

    assert run_apart(fill()) == (b"y" * 30, None)


def test_work_is_given_up_when_time_is_up_or_nobody_listens():
    cancelled = []

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def listen_no_more(scope):
        task = asyncio.ensure_future(answer_in_time(scope, work(), 60))
        await asyncio.sleep(0)
        scope["on_hang_up"]()
        return await task

    with pytest.raises(ApiError, match=r"not ready within 0\.01 seconds"):
        run_apart(answer_in_time({}, work(), 0.01))
    with pytest.raises(ClientGone):
        run_apart(listen_no_more({}))
    assert cancelled == [True, True]
    with pytest.raises(ClientGone):
        run_apart(answer_in_time({"hung_up": True}, work(), 60))
    assert cancelled == [True, True], "it was never begun"
