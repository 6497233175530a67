"""What stands before the addresses: tokens, hosts, bodies, limits, probes; and a server that is right after it all."""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clearhead.serve.limits import Limits
from clearhead.serve.metrics import resident_bytes
from tests.serve.api_serving import JSON, eventually, serving

TOKEN = "kepler-school-lesson-7"
GOOD = json.dumps({"input": "red plum"})


@pytest.fixture(scope="module")
def guarded(api_runs):
    with serving([api_runs["classifier"]], token=TOKEN, cors=("https://page.example",)) as client:
        yield client


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"]
)
@pytest.mark.parametrize("path", ["/v1/classify", "/v1/models", "/metrics", "/v1/nothing"])
def test_nobody_gets_in_without_the_token(guarded, header, path):
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=60)
    headers = dict(JSON) | ({} if header is None else {"Authorization": header})
    connection.request("POST" if path == "/v1/classify" else "GET", path, GOOD, headers)
    reply = connection.getresponse()
    assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert json.loads(reply.read())["error"]["code"] == "invalid_api_key"
    connection.close()


def test_with_the_token_one_gets_in_and_probes_need_none(guarded):
    assert guarded.send("POST", "/v1/classify", GOOD)[0] == 200
    for path in ("/healthz", "/readyz"):
        connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=60)
        connection.request("GET", path)
        assert connection.getresponse().status == 200
        connection.close()


def test_pages_of_other_origins_are_let_in_only_where_asked(guarded, api):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    for origin, status in (("https://page.example", 200), ("https://other.example", 400)):
        found, headers, _ = guarded.send("OPTIONS", "/v1/classify", headers={"Origin": origin, **asked})
        assert found == status
        assert (headers["Access-Control-Allow-Origin"] == origin) == (status == 200)
    status, headers, _ = api.send("OPTIONS", "/v1/classify", headers={"Origin": "https://page.example", **asked})
    assert (status, headers["Access-Control-Allow-Origin"]) == (403, None)


def test_without_a_token_only_this_machine_s_names_are_served(api):
    for host, status in (("evil.example", 403), (f"127.0.0.1:{api.port}", 200), (f"localhost:{api.port}", 200)):
        assert api.send("GET", "/v1/models", headers={"Host": host})[0] == status


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"[1]", JSON, 400),
        (b"\xff\xfe{}", JSON, 400),
        (b'{"input": NaN}', JSON, 400),
        (b"[" * 100_000, JSON, 400),
        (b"", JSON, 400),
        (b'{"input": "\\ud800"}', JSON, 400),
        (b'{"input": {"a": 1}}', JSON, 400),
        (b'{"input": "x", "model": 3}', JSON, 400),
        (GOOD.encode(), {"Content-Type": "text/plain"}, 415),
    ],
)
def test_a_body_that_is_not_what_it_should_be_is_refused(api, body, headers, status):
    found, _, reply = api.send("POST", "/v1/classify", body, headers)
    assert found == status
    assert json.loads(reply)["error"]["type"] == "invalid_request_error"


def test_unknown_addresses_and_methods_are_refused(api):
    assert api.send("GET", "/v2/nothing")[0] == 404
    status, _, body = api.send("GET", "/v1/classify")
    assert status == 405
    assert "/v1/translate" in json.loads(body)["error"]["message"]


def gigabyte(socket, pieces):
    """Send a gigabyte for as long as it is taken; return what was answered and how much was sent."""
    sent, piece = 0, b" " * 1_000_000
    try:
        while sent < 1_000_000_000:
            socket.sendall(b"f4240\r\n" + piece + b"\r\n" if pieces else piece)
            sent += len(piece)
    except OSError:
        pass
    try:
        return socket.makefile("rb").readline(), sent
    except OSError:
        return b"", sent


@pytest.mark.parametrize("pieces", [False, True])
def test_a_gigabyte_is_refused_and_not_held(api, pieces):
    length = "Transfer-Encoding: chunked" if pieces else "Content-Length: 1000000000"
    before = resident_bytes()
    with api.raw(
        "POST /v1/classify HTTP/1.1", f"Content-Type: application/json\r\n{length}\r\n\r\n".encode()
    ) as socket:
        line, sent = gigabyte(socket, pieces)
    assert line.startswith(b"HTTP/1.1 413")
    assert sent < 200_000_000
    assert resident_bytes() - before < 100_000_000
    assert api.send("POST", "/v1/classify", GOOD)[0] == 200


def test_texts_and_bodies_have_limits(api_runs):
    limits = Limits(text=50, body=2000, texts=3)
    with serving([api_runs["classifier"]], limits=limits) as client:
        assert client.refused("/v1/classify", input="x" * 51)[:2] == (413, "input")
        assert client.refused("/v1/classify", input=["x"] * 4)[:2] == (413, "input")
        assert client.refused("/v1/classify", input="x" * 3000)[0] == 413
        assert client.post("/v1/classify", input="red")[0] == 200


def test_a_full_queue_is_refused_with_when_to_come_back_and_empties_again(slow):
    client = slow(limits=Limits(queue=4))
    asked = {"prompt": "a", "max_tokens": 40}
    with ThreadPoolExecutor(24) as pool:
        body = json.dumps(asked)
        found = list(pool.map(lambda _: client.send("POST", "/v1/completions", body), range(24)))
    statuses = [status for status, _, _ in found]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 4
    assert all(int(headers["Retry-After"]) >= 1 for status, headers, _ in found if status == 429)
    assert client.post("/v1/completions", **asked)[0] == 200
    assert client.refused("/v1/completions", **asked, n=5)[0] == 413


def test_caches_have_a_limit_of_memory(slow, api_runs):
    client = slow(limits=Limits(memory=60_000), pause=0.02)
    one = client.models["slow"]
    thread = threading.Thread(target=lambda: client.post("/v1/completions", prompt="a" * 10, max_tokens=16, n=6))
    thread.start()
    eventually(lambda: one.worker.memory > 0)
    status, headers, body = client.send(
        "POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 16, "n": 6})
    )
    assert (status, headers["Retry-After"] is not None) == (503, True), body
    assert json.loads(body)["error"]["code"] == "out_of_memory"
    thread.join()
    assert client.refused("/v1/completions", prompt="a", max_tokens=16, n=100)[0] == 413
    assert (one.worker.memory, one.worker.pending) == (0, 0)


def test_an_answer_that_takes_too_long_is_given_up(slow):
    client = slow(limits=Limits(seconds=0.2))
    asked = {"prompt": "a", "max_tokens": 1000}
    status, _, message = client.refused("/v1/completions", **asked)
    assert (status, "0.2 seconds" in message) == (504, True)
    status, _, body = client.send("POST", "/v1/completions", json.dumps({**asked, "stream": True}))
    last = json.loads(body.decode().rstrip().rsplit("data: ", 1)[1])
    assert (status, last["error"]["code"]) == (200, "timeout")
    eventually(lambda: client.metric("sequences_running") == 0)


def test_metrics_count_what_was_asked(api_runs):
    with serving([api_runs["documents"]], names=["documents"]) as client:
        for _ in range(3):
            client.answer("/v1/completions", prompt="the", temperature=0, max_tokens=4)
        client.stream("/v1/completions", prompt="the", temperature=0, max_tokens=4)
        client.refused("/v1/completions", prompt="the", n=0)
        answered = 'clearhead_requests_total{route="/v1/completions",status="200"} 4'
        eventually(lambda: answered in client.get("/metrics")[1])  # a stream is counted after its last piece
        text = client.get("/metrics")[1]
    assert 'clearhead_requests_total{route="/v1/completions",status="400"} 1' in text
    assert 'clearhead_generated_tokens_total{model="documents"} 16' in text
    assert 'clearhead_first_token_seconds_count{model="documents"} 1' in text
    assert 'clearhead_batch_rows_count{model="documents"} ' in text
    assert "clearhead_ready 1" in text


def test_logs_have_what_was_asked_and_never_the_text(api_runs):
    with serving([api_runs["documents"]], names=["documents"]) as client:
        client.answer("/v1/completions", prompt="secretprompt", temperature=0, max_tokens=4)
        client.refused("/v1/completions", prompt="secretprompt", stop="secretstop", logit_bias={"secret": 1})
        client.refused("/v1/completions", secretoption="secretvalue", prompt="secretprompt")
        client.send("POST", "/v1/secretaddress", b"{secret")
    lines = client.lines
    assert not any("secret" in line for line in lines)
    asked = [line for line in map(json.loads, lines) if line["event"] == "request"]
    assert [line["status"] for line in asked] == [200, 400, 400, 404]
    assert asked[0]["completion_tokens"] == 4
    assert asked[0]["route"] == "/v1/completions"


def test_an_error_that_nobody_foresaw_is_told_without_details(api_runs, monkeypatch):
    with serving([api_runs["classifier"]]) as client:
        from clearhead.training.tasks.classify import Classify

        with monkeypatch.context() as patch:
            patch.setattr(Classify, "classify", lambda *_: 1 / 0)
            status, found = client.post("/v1/classify", input="secret plum")
        assert (status, found["error"]["type"]) == (500, "server_error")
        assert "division" not in json.dumps(found)
        assert client.post("/v1/classify", input="red plum")[0] == 200
        failures = [line for line in map(json.loads, client.lines) if line["event"] == "failure"]
    assert failures[0]["error"] == "ZeroDivisionError"
    assert "secret" not in json.dumps(failures)


def test_probes_answer_while_it_decodes(slow):
    client = slow(pause=0.05)
    threading.Thread(target=lambda: client.post("/v1/completions", prompt="a", max_tokens=20)).start()
    eventually(lambda: client.metric("sequences_running") == 1)
    began = time.perf_counter()
    assert client.get("/healthz") == (200, "ok\n")
    assert client.get("/readyz") == (200, "ready\n")
    assert time.perf_counter() - began < 30
