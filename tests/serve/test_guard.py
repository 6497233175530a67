"""The guard: the token is needed for everything, and whatever is asked wrongly gets 4xx and nothing else."""

import json

import pytest

from clearhead.errors import OptionError
from clearhead.serve import guard
from clearhead.serve.guard import ServerAddress, check_token
from clearhead.serve.limits import Limits
from tests.serve.conftest import PAGE, Client, serving

EVERYTHING = ["", "index.html", "assets/page-1_a.js", "api/health", "api/run", "api/curves", "api/trace", "nowhere"]
JSON = {"Content-Type": "application/json"}
MOST_BYTES = Limits().body


@pytest.fixture(scope="module")
def client(client_of, classifier):
    return client_of(classifier)


def test_the_page_and_the_api_are_there_under_the_token(client):
    assert client.get("")[1][1].decode() == PAGE
    assert client.get("assets/page-1_a.js")[1][1] == b"1"
    assert client.get("api/health") == (200, {"ok": True})
    status, headers, _ = client.send("GET", f"/{client.place.token}")
    assert (status, headers["Location"]) == (307, client.place.page)


@pytest.mark.parametrize("path", EVERYTHING)
def test_without_the_token_there_is_nothing(client, path):
    token = client.place.token
    wrong = [f"/{path}", f"/{'x' * len(token)}/{path}", f"/{token[:-1]}/{path}", f"/{token}x/{path}"]
    for address in [*wrong, f"/x/{token}/{path}", f"/?/{token}/{path}"]:
        status, _, body = client.send("GET", address)
        assert (status, b"the token is missing or wrong" in body) == (401, True), address


def test_every_reply_has_its_headers(client):
    for path, status in (("", 200), ("api/run", 200), ("nowhere", 404), ("api/trace/x/lens", 410)):
        found, headers, _ = client.send("GET", f"/{client.place.token}/{path}")
        assert found == status
        assert headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == ("no-store" if path.startswith("api/") else "no-cache")
        assert "Server" not in headers
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_the_host_may_be_one_of_its_own(client, name):
    address = f"/{client.place.token}/api/health"
    assert client.send("GET", address, headers={"Host": f"{name}:{client.place.port}"})[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "",
     "localhost:{port}:{port}", "a@localhost:{port}", "localhost:{port}/", "127.0.0.2:{port}", "[::2]:{port}"],
)  # fmt: skip
def test_a_foreign_host_gets_nothing(client, host):
    headers = {"Host": host.format(port=client.place.port)}
    assert client.send("GET", f"/{client.place.token}/api/health", headers=headers)[0] == 403


def test_a_request_without_a_host_or_with_two_gets_nothing(client):
    line = f"GET /{client.place.token}/api/health HTTP/1.1\r\n".encode()
    own = f"Host: 127.0.0.1:{client.place.port}\r\n".encode()
    assert client.raw(line + own + b"\r\n") == 200
    for hosts in (b"", own + own, own + b"Host: evil.example\r\n"):
        assert client.raw(line + hosts + b"\r\n") in (400, 403)
    assert client.raw(line.replace(b"1.1", b"1.0") + b"\r\n") == 403


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_origin_must_be_its_own(client, method):
    address, port = f"/{client.place.token}/api/{'health' if method == 'GET' else 'trace'}", client.place.port
    body = b'{"source": "red cat"}' if method == "POST" else None
    for origin in (f"http://127.0.0.1:{port}", f"http://localhost:{port}"):
        assert client.send(method, address, body, {**JSON, "Origin": origin})[0] == 200
    for origin in (
        "http://evil.example", "null", "", f"https://127.0.0.1:{port}", "http://127.0.0.1", f"http://evil.example:{port}"
    ):  # fmt: skip
        assert client.send(method, address, body, {**JSON, "Origin": origin})[0] == 403, origin


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_other_methods_are_refused(client, method):
    for path in ("api/run", "api/trace", ""):
        refused = (400, 405) if method == "BREW" else (405,)  # a parser may know no such method
        assert client.send(method, f"/{client.place.token}/{path}")[0] in refused


def test_a_method_that_is_not_the_addresss_own_is_refused(client):
    assert client.send("GET", f"/{client.place.token}/api/trace")[0] == 405
    for path in ("api/run", "index.html", ""):
        assert client.send("POST", f"/{client.place.token}/{path}", b"{}", JSON)[0] == 405


PATHS = [
    "/../secret.txt", "/..", "/./index.html", "/assets/../../secret.txt", "/assets/..%2f..%2fsecret.txt",
    "/%2e%2e/secret.txt", "/%2E%2E%2Fsecret.txt", "/..\\secret.txt", "/%5c..%5csecret.txt", "/index.html%00.js",
    "//secret.txt", "//etc/passwd", "/%2fetc%2fpasswd", "/.env", "/assets/.hidden", "/api//run", "/api/run/..",
    "/%252e%252e/secret.txt", "/index.html;x", "/ä", "/%c0%ae%c0%ae/secret.txt", "/api/trace/%2e%2e/tile",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_path_tricks_get_nowhere(client, path):
    request = f"GET /{client.place.token}{path} HTTP/1.1\r\nHost: localhost:{client.place.port}\r\n\r\n"
    status = client.raw(request.encode())
    assert status is not None
    assert 400 <= status < 500


@pytest.mark.parametrize(
    "target",
    ["http://evil.example/{token}/", "http://localhost:{port}/{token}/api/health", "{token}/", "*", "", "?",
     "\\{token}/", "/{token}/api/health\0", "/{token}/ api/health"],
)  # fmt: skip
def test_targets_that_are_no_path_get_nowhere(client, target):
    target = target.format(token=client.place.token, port=client.place.port)
    status = client.raw(f"GET {target} HTTP/1.1\r\nHost: localhost:{client.place.port}\r\n\r\n".encode())
    assert status is not None
    assert 400 <= status < 500


def test_what_is_no_request_at_all_gets_4xx(client):
    for request in (b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/x\r\n\r\n"):
        assert client.raw(request) == 400


def test_a_link_out_of_the_pages_folder_is_not_followed(client_of, documents, tmp_path_factory):
    client = client_of(documents)
    static = max(tmp_path_factory.getbasetemp().glob("page*/static"), key=lambda path: path.stat().st_mtime_ns)
    (static / "link.txt").symlink_to(static.parent / "secret.txt")
    assert client.get("link.txt")[0] == 404
    assert client.get("assets")[0] in (307, 404)


def test_an_address_that_is_too_long_is_refused(client):
    assert client.send("GET", f"/{client.place.token}/api/health?x={'y' * 5000}")[0] == 200
    assert client.send("GET", f"/{client.place.token}/api/health?x={'y' * 9000}")[0] == 414
    assert client.send("GET", f"/{client.place.token}/{'y' * 9000}")[0] == 414
    assert client.raw(f"GET /{client.place.token}/api/health HTTP/1.1\r\nX: {'y' * 70_000}".encode()) == 400


def test_a_body_that_is_too_large_is_refused_before_it_comes(client):
    head = f"POST /{client.place.token}/api/trace HTTP/1.1\r\nHost: localhost:{client.place.port}\r\n"
    kind = "Content-Type: application/json\r\n"
    assert client.raw(f"{head}{kind}Content-Length: {MOST_BYTES + 1}\r\n\r\n".encode()) == 413
    assert client.raw(f"{head}{kind}Content-Length: {10**15}\r\n\r\n".encode()) == 413
    for length in ("-1", "x", "1, 2", str(10**30)):
        assert client.raw(f"{head}{kind}Content-Length: {length}\r\n\r\n".encode()) == 400


def test_a_body_is_counted_as_it_comes(client):
    """In chunks, no length is told."""
    head = f"POST /{client.place.token}/api/trace HTTP/1.1\r\nHost: localhost:{client.place.port}\r\n"
    chunk = b"%x\r\n%s\r\n" % (MOST_BYTES // 10, b" " * (MOST_BYTES // 10))
    start = f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert client.raw(start + 10 * chunk + b"1\r\n \r\n") == 413
    small = b'{"source": "red cat"}'
    assert client.raw(start + b"%x\r\n%s\r\n0\r\n\r\n" % (len(small), small)) == 200


def test_the_largest_body_is_read(client):
    text = json.dumps({"source": "red cat", "target": None}).encode()
    assert client.post("api/trace", text + b" " * (MOST_BYTES - len(text)))[0] == 200


def test_a_body_that_never_comes_is_not_waited_for(classifier, tmp_path):
    with serving(classifier, tmp_path / "static", limits=Limits(arrival=0.2)) as server:
        head = f"POST /{server.place.token}/api/trace HTTP/1.1\r\nHost: localhost:{server.place.port}\r\n"
        half = f"{head}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{"
        assert Client(server).raw(half.encode()) == 408


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_must_be_called_json(client, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    assert client.send("POST", f"/{client.place.token}/api/trace", b'{"source": "red cat"}', headers)[0] == 415


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"[]", b"3", b"null", b'"text"', b'{"source": NaN}', b"\xff\xfe", b"[" * 100_000,
     b'{"source": "\\ud800"}', b'{"source": ["a"]}', b'{"source": {}}', b'{"source": 3}', b"{}", b'{"text": "a"}',
     b'{"a":' * 100_000],
)  # fmt: skip
def test_a_body_that_is_not_what_it_should_be_gets_a_sentence(client, body):
    status, found = client.post("api/trace", body)
    assert status == 400
    assert len(found["error"]) > 20
    assert "Traceback" not in found["error"]


def test_what_the_server_did_not_expect_is_told_on_stderr_alone(client, monkeypatch, capfd):
    from clearhead.serve.questions import trace

    def fails(*args, **kwargs):
        raise ZeroDivisionError("the secret reason")

    monkeypatch.setattr(trace, "trace", fails)
    status, found = client.post("api/trace", {"source": "old cow"})
    assert status == 500
    assert found == {"error": "this should not happen: the server's log has where"}
    said = capfd.readouterr().err  # all of it was written before the reply went out
    assert "ZeroDivisionError: the secret reason" in said
    assert client.get("api/health")[0] == 200


def test_a_place_everywhere_knows_numbers_and_its_own_name_but_no_other():
    place = ServerAddress(host="0.0.0.0", port=80, token="t")
    assert place.page == "http://127.0.0.1:80/t/"
    assert place.knows("192.168.3.4:80")
    assert place.knows("192.168.3.4")
    assert place.knows("[fe80::1]:80")
    assert not place.knows("evil.example:80")
    assert not place.knows("192.168.3.4:81")
    assert ServerAddress(host="::1", port=9, token="t").page == "http://[::1]:9/t/"


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ("", "16 characters at least; this one has 0"),
        ("a" * 15, "16 characters at least; this one has 15"),
        ("prüfung-2026-klasse-9", "letters A to Z and a to z"),
        ("lesson/7/kepler/school", "- and _"),
        ("lesson 7 kepler school", "- and _"),
        ("lesson-7-kepler-school\n", "something else"),
        (".hidden-lesson-7-kepler", "something else"),
    ],
)
def test_a_token_that_is_short_or_no_part_of_an_address_is_refused(token, told):
    with pytest.raises(OptionError, match="token: ") as caught:
        check_token(token)
    assert told in str(caught.value)


def test_every_token_that_is_accepted_is_a_path_the_guard_accepts():
    for token in ("a" * 16, "-" * 16, "_lesson-7_Kepler-school"):
        assert guard.PLAIN_PATH.fullmatch(f"/{check_token(token)}/".encode())
