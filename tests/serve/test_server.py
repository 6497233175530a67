"""The server from start to end: it drains, ends in time, and speaks TLS."""

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.request

import pytest

from clearhead.errors import OptionError
from clearhead.serve.api.routes import Api
from clearhead.serve.limits import Limits
from clearhead.serve.server import Server, Tls
from tests.serve.api_serving import eventually, serving


def test_a_drain_answers_what_is_under_way_and_takes_no_more(slow):
    client = slow(pause=0.02)
    found = []
    thread = threading.Thread(target=lambda: found.append(client.post("/v1/completions", prompt="a", max_tokens=60)))
    thread.start()
    eventually(lambda: client.metric("sequences_running") == 1)
    client.server.stop()
    eventually(lambda: client.server.state.draining)
    status, headers, body = client.send("POST", "/v1/completions", json.dumps({"prompt": "a"}))
    assert (status, headers["Retry-After"], headers["Connection"]) == (503, "5", "close")
    assert json.loads(body)["error"]["code"] == "draining"
    assert client.send("GET", "/readyz")[0] == 503
    assert client.send("GET", "/healthz")[0] == 200
    thread.join()
    assert found[0][0] == 200
    assert len(found[0][1]["choices"][0]["text"]) == 60
    events = [json.loads(line)["event"] for line in client.lines]
    assert "draining" in events


def test_a_drain_ends_when_its_time_is_over(api_runs):
    from tests.serve.api_serving import Slow

    began, lines = time.monotonic(), []
    limits = Limits(drain=0.2)
    with serving([api_runs["stretch"]], scheduler=lambda m, c: Slow(m, 0.02), limits=limits) as client:
        lines = client.lines

        def ask():
            with contextlib.suppress(OSError):
                client.send("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 4000}))

        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: client.metric("sequences_running") == 1)
    thread.join()
    assert time.monotonic() - began < 60
    assert "drain_over" in [json.loads(line)["event"] for line in lines]


def test_before_it_is_ready_it_says_so(slow):
    client = slow()
    client.server.state.ready = False
    status, headers, _ = client.send("POST", "/v1/completions", json.dumps({"prompt": "a"}))
    assert (status, headers["Retry-After"]) == (503, "1")
    assert client.send("GET", "/readyz")[0] == 503
    client.server.state.ready = True


@pytest.mark.slow
def test_it_speaks_tls(api_runs, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    try:
        subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl")
    with serving([api_runs["classifier"]], tls=Tls(certificate=certificate, key=key)) as client:
        trusting = ssl.create_default_context(cafile=str(certificate))
        address = f"{client.server.address}/healthz"
        assert address.startswith("https://")
        assert urllib.request.urlopen(address, context=trusting, timeout=60).read() == b"ok\n"


def test_what_cannot_be_served_is_told_at_once(api_runs, tmp_path):
    with pytest.raises(OptionError, match="token: whoever guesses it gets in"):
        Server(Api([api_runs["classifier"]]), token="short")
    with pytest.raises(OptionError, match=r"ssl-certfile: .* cannot be used"):
        Server(Api([api_runs["classifier"]]), tls=Tls(certificate=tmp_path / "nothing"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match=f"port {port} of 127.0.0.1 cannot be had"):
            Server(Api([api_runs["classifier"]]), port=port)
