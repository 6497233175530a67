"""Two clients and a hundred requests at once leave the server answering, and answering rightly."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clearhead.experiments.tracing import trace
from clearhead.serve.questions import heads
from clearhead.serve.questions import trace as trace_question

WORDS = ("null", "eins", "zwei", "drei", "vier")
TEXTS = [f"{one} {other}" for one in WORDS for other in WORDS][:10]


@pytest.mark.slow
def test_a_hundred_requests_at_once_are_all_answered(translator, client_of):
    client = client_of(translator)

    def ask(number):
        text = TEXTS[number % len(TEXTS)]
        status, meta = client.post("api/trace", {"source": text, "target": "12"})
        assert status == 200, meta
        asked = {"site": "decoder.0.cross", "head": number % 2}
        status, found = client.get(f"api/trace/{meta['id']}/cell", query=1, key=0, **asked)
        assert status == 200, found
        return text, number % 2, found["weight"]

    with ThreadPoolExecutor(max_workers=100) as clients:
        answers = list(clients.map(ask, range(100)))
    for text, head, weight in answers:
        assert weight == trace(translator, text, "12")["decoder.0.cross"].head[head].cell(1, 0).weight
    assert client.get("api/health") == (200, {"ok": True})


def test_the_page_is_served_while_the_model_is_at_work(translator, client_of, monkeypatch):
    client, begun, goes_on = client_of(translator), threading.Event(), threading.Event()

    def waits(*args, **kwargs):
        begun.set()
        assert goes_on.wait(300)
        return trace(*args, **kwargs)

    monkeypatch.setattr(trace_question, "trace", waits)
    with ThreadPoolExecutor(max_workers=3) as clients:
        first = clients.submit(client.post, "api/trace", {"source": "vier vier vier"})
        assert begun.wait(300)
        second = clients.submit(client.post, "api/trace", {"source": "null vier null"})
        assert client.get("api/health") == (200, {"ok": True})
        assert client.get("")[0] == 200
        assert client.get("api/run")[0] == 200
        assert client.get("api/curves")[0] == 200
        assert not first.done()
        assert not second.done()
        goes_on.set()
        assert first.result(300)[0] == second.result(300)[0] == 200


def test_one_thing_is_worked_on_at_a_time(translator, client_of, monkeypatch):
    client, lock, overlaps = client_of(translator), threading.Lock(), []

    def alone(*args, **kwargs):
        free = lock.acquire(blocking=False)
        overlaps.append(not free)
        time.sleep(0.02)
        if free:
            lock.release()
        return trace(*args, **kwargs)

    monkeypatch.setattr(trace_question, "trace", alone)
    with ThreadPoolExecutor(max_workers=8) as clients:
        found = list(clients.map(lambda i: client.post("api/trace", {"source": "eins " * (i + 1)})[0], range(6)))
    assert found == [200] * 6
    assert overlaps == [False] * 6


def test_whoever_has_gone_is_not_worked_for(translator, client_of, monkeypatch):
    client, begun, goes_on, worked = client_of(translator), threading.Event(), threading.Event(), []

    def waits(run, source, *args, **kwargs):
        worked.append(source)
        begun.set()
        assert goes_on.wait(300)
        return trace(run, source, *args, **kwargs)

    monkeypatch.setattr(trace_question, "trace", waits)
    with ThreadPoolExecutor(max_workers=2) as clients:
        first = clients.submit(client.post, "api/trace", {"source": "zwei drei vier"})
        assert begun.wait(300)
        leave(client, b'{"source": "drei drei"}')
        last = clients.submit(client.post, "api/trace", {"source": "vier drei"})
        assert client.get("api/health")[0] == 200
        goes_on.set()
        assert first.result(300)[0] == last.result(300)[0] == 200
    assert worked == ["zwei drei vier", "vier drei"]


def leave(client, body):
    """Asks, and is gone once the question is there."""
    head = f"POST /{client.place.token}/api/trace HTTP/1.1\r\nHost: localhost:{client.place.port}\r\n"
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", client.place.port)) as connection:
        connection.sendall((head + kind).encode() + body)
        time.sleep(0.3)


@pytest.mark.parametrize("slow_part", ["readings", "trace"])
def test_tiles_wait_neither_for_readings_nor_for_the_model(slow_part, translator, client_of, monkeypatch):
    client, begun, goes_on = client_of(translator), threading.Event(), threading.Event()
    _, meta = client.post("api/trace", {"source": "drei drei eins", "target": "331"})
    module = {"readings": heads, "trace": trace_question}[slow_part]
    found = getattr(module, slow_part)

    def waits(*args, **kwargs):
        begun.set()
        assert goes_on.wait(300)
        return found(*args, **kwargs)

    def ask_slowly():
        if slow_part == "trace":
            return client.post("api/trace", {"source": "zwei"})
        return client.get(f"api/trace/{meta['id']}/readings", site="decoder.0.cross")

    monkeypatch.setattr(module, slow_part, waits)
    with ThreadPoolExecutor(max_workers=1) as clients:
        slow = clients.submit(ask_slowly)
        assert begun.wait(300)
        asked = {"site": "decoder.0.cross", "head": 0, "step": "weight"}
        assert client.get(f"api/trace/{meta['id']}/tile", **asked)[0] == 200
        assert not slow.done()
        goes_on.set()
        assert slow.result(300)[0] == 200
