"""Strangers at the server's doors: no token, another Host or Origin, odd paths, too much, too slow, too many.

Each case is one trick against a server in a process of its own, whose limits are small: what would take half a minute
takes a second.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.attack import forking
from tests.attack.servers import (
    ENDLESS,
    HOST,
    SERVES,
    Place,
    ask,
    exchange,
    make_runs,
    memory_of,
    outlived,
    processor_time,
    request,
    served,
    status_of,
)  # fmt: skip
from tests.attack.table import Row, Tries, attack

SMALL = {"connections": 40, "bodies": 10, "head": 1.0, "arrival": 2.0, "idle": 2.0, "reading": 3.0, "body": 200_000}
"""Limits that are passed within seconds."""
UNCLEAR = (b"this should not happen", b"Traceback", b"please report", b"swordfish")
"""What no reply may hold; the last is in a file beside the page."""
PAGES = ("", "index.html", "api/health", "api/run", "v1/models", "metrics", "openapi.json", "../secret.txt")
Trick = Callable[[Place, random.Random], bytes]


def bent_token(place: Place, draw: random.Random) -> bytes:
    """The token is missing, too short, too long, in another order or at another place."""
    token, page = place.token, draw.choice(PAGES)
    mixed = "".join(draw.sample(token, len(token)))
    bent = (
        mixed,
        "x" * len(token),
        token[:-1],
        f"{token}x",
        f"x/{token}",
        f"?/{token}",
        f"%00{token}",
        token.swapcase(),
    )
    wrong = draw.choice((*bent, f"{token}%20", f";{token}", f"..%2f{token}", "null", "undefined", ""))
    return request(place, "GET", f"/{wrong}/{page}".replace("//", "/"))


def bent_bearer(place: Place, draw: random.Random) -> bytes:
    """The header is missing, has another scheme, half a token or two."""
    token = place.token
    header = draw.choice(("", "Bearer", "Bearer x", f"Basic {token}", token, f"Bearer {token[:-1]}", f"Bearer {token}x",
                          f"Bearer {token},{token}", f"Bearer\t{token[1:]}", "Bearer null"))  # fmt: skip
    body = json.dumps({"model": "translator", "input": "eins"}).encode()
    return request(place, "POST", "/v1/translate", body, Authorization=header)


def foreign_host(place: Place, draw: random.Random) -> bytes:
    """A name that another site has made to point here (DNS rebinding)."""
    port = place.port
    odd = ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", f"a@localhost:{port}", HOST, "")
    host = draw.choice((*odd, f"{HOST}:1", f"[::2]:{port}", f"127.0.0.2:{port}", f"localhost:{port}:{port}"))
    return request(place, "GET", f"/{place.token}/{draw.choice(PAGES[:4])}", Host=host)


def foreign_origin(place: Place, draw: random.Random) -> bytes:
    """A page of another site asks."""
    origin = draw.choice(
        ("http://evil.example", "null", f"http://evil.example:{place.port}", f"https://{HOST}", "file://")
    )
    return request(place, "GET", f"/{place.token}/{draw.choice(PAGES[:4])}", Origin=origin)


def odd_path(place: Place, draw: random.Random) -> bytes:
    """A path that leads out of the page's folder, or is none."""
    out = ("../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "assets/../../secret.txt", "....//secret.txt")
    odd = ("/etc/passwd", ".env", "index.html;x", "api//run", "api/trace/%2e%2e/tile", "x" * 9000, "%00", "%")
    path = draw.choice((*out, *odd))
    return request(place, draw.choice(("GET", "HEAD")), f"/{place.token}/{path}")


def odd_method(place: Place, draw: random.Random) -> bytes:
    return request(
        place, draw.choice(("PUT", "DELETE", "PATCH", "OPTIONS", "BREW", "TRACE")), f"/{place.token}/api/run"
    )


def form_post(place: Place, draw: random.Random) -> bytes:
    """A body as a form of another site can send it."""
    kind = draw.choice(("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""))
    return request(place, "POST", f"/{place.token}/api/trace", b'{"source": "eins"}', Content_Type=kind)


STRANGERS: tuple[Trick, ...] = (
    bent_token, bent_bearer, foreign_host, foreign_origin, odd_path, odd_method, form_post,
)  # fmt: skip
"""Tricks that none may get in by: every reply is 4xx."""


@attack(
    "strangers-at-the-door", "no token, half a token, another Host, Origin, method or path, at the API and the explorer"
)
def at_the_door(home: Path, tries: Tries) -> Row:
    forking.run(lambda: bool(make_runs(home / "served")))
    with served(home / "served", limits={"head": 60.0, "idle": 60.0}) as place:
        for good in (request(place, "GET", f"/{place.token}/api/run"), ask(place, "/v1/translate", **EINS)):
            if status_of(exchange(place, good)) != 200:
                return Row("", 1, ["an honest request is not answered"])

        def case(trick: Trick, draw: random.Random) -> str:
            data = trick(place, draw)
            reply = exchange(place, data)
            if status_of(reply) not in range(400, 500) or any(word in reply for word in UNCLEAR):
                return f"{data[:300]!r} -> {reply[:200]!r}"
            return ""

        return tries.each(STRANGERS * 300, case, short=140)


EINS = {"model": "translator", "input": "eins", "beam": 1}


def honest_answer(place: Place, seconds: float = 30.0) -> str:
    """Return what is wrong with how an honest request is answered, or ""."""
    reply = exchange(place, ask(place, "/v1/translate", **EINS), seconds=seconds)
    return "" if status_of(reply) == 200 else f"an honest request is answered {reply[:200]!r}"


def opened(place: Place, data: bytes, many: int) -> list[socket.socket]:
    """Open connections that send some bytes and no more."""
    found: list[socket.socket] = []
    for _ in range(many):
        found.append(socket.create_connection((HOST, place.port), timeout=30))
        with contextlib.suppress(OSError):
            found[-1].sendall(data)
    return found


def closed_within(connections: list[socket.socket], seconds: float) -> str:
    """Return how many connections the server has not closed by then, or ""."""
    until, still = time.monotonic() + seconds, 0
    for connection in connections:
        connection.settimeout(max(0.05, until - time.monotonic()))
        try:
            while connection.recv(65536):
                pass
        except TimeoutError:
            still += 1
        except OSError:
            pass
    return f"{still} of {len(connections)} connections are still open after {seconds:g} s" if still else ""


def half_of(place: Place) -> bytes:
    return ask(place, "/v1/translate", **EINS)[:-4]


def silent(place: Place) -> str:
    """Send nothing: closed after the time for a head."""
    return closed_within(opened(place, b"", 5), 20)


def half_heads(place: Place) -> str:
    return closed_within(opened(place, b"GET / HTTP/1.1\r\nHost: x\r\nX-", 5), 20)


def dripping_head(place: Place) -> str:
    """Send a byte of a head every tenth of a second: the deadline is not put off by it."""
    [connection] = opened(place, b"GET / HTTP/1.1\r\n", 1)
    until = time.monotonic() + 20
    with connection, contextlib.suppress(OSError):
        while time.monotonic() < until:
            connection.sendall(b"X")
            time.sleep(0.1)
        return "a head may take for ever"
    return ""


def half_bodies(place: Place) -> str:
    """Send half of a body: 408 or closed after the time for a body."""
    return closed_within(opened(place, half_of(place), 5), 20)


def idle_connections(place: Place) -> str:
    """Ask once, and then nothing."""
    return closed_within(opened(place, ask(place, "/v1/translate", **EINS), 5), 20)


def many_half_bodies(place: Place) -> str:
    """Send half of a body on three times as many connections as there may be: the others are answered meanwhile."""
    connections = opened(place, half_of(place), 3 * SMALL["connections"])  # type: ignore[arg-type]
    problem = honest_answer(place)
    still = sum(is_open(connection) for connection in connections)
    for connection in connections:
        connection.close()
    bound = int(SMALL["bodies"])
    return problem or (f"{still} half-sent bodies are kept, and {bound} are the bound" if still > bound else "")


def many_silent(place: Place) -> str:
    connections = opened(place, b"", 3 * SMALL["connections"])  # type: ignore[arg-type]
    problem = honest_answer(place)
    still, bound = sum(is_open(connection) for connection in connections), int(SMALL["connections"])
    for connection in connections:
        connection.close()
    return problem or (f"{still} silent connections are kept, and {bound} are the bound" if still > bound else "")


def is_open(connection: socket.socket) -> bool:
    """Return whether the other side has not closed a connection, without waiting."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def too_large(place: Place) -> str:
    """Announce a body that is too large, or send it in pieces without a length."""
    bearer, problems = f"Bearer {place.token}", []
    for chunked in (False, True):
        how = {"Transfer_Encoding": "chunked", "Content_Length": ""} if chunked else {"Content_Length": "50000000"}
        piece = b"186a0\r\n" + b" " * 100_000 + b"\r\n" if chunked else b" " * 100_000
        reply = b""
        with contextlib.suppress(OSError), socket.create_connection((HOST, place.port), timeout=30) as connection:
            connection.sendall(request(place, "POST", "/v1/translate", b"", Authorization=bearer, **how))
            with contextlib.suppress(OSError):
                for _ in range(30):
                    connection.sendall(piece)
            reply = connection.recv(65536)
        if status_of(reply) not in (0, 413):
            problems.append(f"{'chunked' if chunked else 'announced'}: {reply[:200]!r}")
    reply = exchange(place, ask(place, "/v1/translate", model="translator", input="e" * 190_000))
    problems += [] if status_of(reply) == 413 else [f"a text of 190,000 characters: {reply[:200]!r}"]
    return "; ".join(problems)


def unread(place: Place) -> str:
    """Ask for a long reply and never read it: the connection is closed, and memory stays."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(30)
    connection.connect((HOST, place.port))
    before = memory_of(place.process)
    with connection:
        connection.sendall(1000 * request(place, "GET", f"/{place.token}/openapi.json"))
        time.sleep(2 * SMALL["reading"])
        try:
            for _ in range(2):  # the first is answered by a reset where the other side has closed
                connection.send(b"x")
                time.sleep(0.2)
        except OSError:
            grown = memory_of(place.process) - before
            return f"memory has grown by {grown:,.0f} MB" if grown > 100 else ""
        return "a client that reads nothing keeps its connection"


def numbers(place: Place) -> str:
    """Send numbers and nesting that no field has: 4xx, never 5xx."""
    huge, problems = "9" * 400, []
    values = (huge, f"-{huge}", f"{huge}.5", "1e400", "NaN", "Infinity", "[" * 3000 + "]" * 3000, r'"\ud800"', "true")
    for name in ("beam", "input", "length_penalty", "n", "attention"):
        for value in values:
            body = f'{{"model": "translator", "input": "eins", "{name}x": 1}}'.replace(
                f'"{name}x": 1', f'"{name}": {value}'
            )
            reply = exchange(
                place, request(place, "POST", "/v1/translate", body.encode(), Authorization=f"Bearer {place.token}")
            )
            if status_of(reply) not in (200, *range(400, 500)):
                problems.append(f"{name}: {value[:12]}… -> {reply[:100]!r}")
    for value in values:
        edit = f'{{"at": "encoder.0.attention", "step": "weight", "to": {value}}}'
        body = f'{{"source": "eins", "target": "1", "edits": [{edit}]}}'
        reply = exchange(place, request(place, "POST", f"/{place.token}/api/trace", body.encode()))
        if status_of(reply) not in (200, *range(400, 500)):
            problems.append(f"an edit to {value[:12]}… -> {reply[:100]!r}")
    return "; ".join(problems)


def endless_template(place: Place) -> str:
    """Chat with a model whose template never ends: it is refused, and the others are answered meanwhile."""
    talk = ask(place, "/v1/chat/completions", model="talker", messages=[{"role": "user", "content": "x"}])
    with socket.create_connection((HOST, place.port), timeout=60) as connection:
        connection.sendall(talk)
        problem = honest_answer(place, seconds=20)
        reply = b""
        with contextlib.suppress(OSError):
            reply = connection.recv(65536)
    if status_of(reply) != 400:
        return f"the chat is answered {reply[:200]!r}"
    return problem


def grammars(place: Place) -> str:
    """Ask for answers of grammars that grow without bound: each is refused after little work."""
    bombs = ("((a{1000}){1000}){1000}", "(((a{300}b){300}c){300}d){300}", "(a?){5000}a{5000}", "(" * 9000)
    for bomb in bombs:
        before = processor_time(place.process)
        reply = exchange(place, ask(place, "/v1/completions", model="writer", prompt="a", regex=bomb), seconds=300)
        took = processor_time(place.process) - before
        if status_of(reply) != 400 or took > 3:
            return f"{bomb[:30]} took {took:.1f} s of processor time: {reply[:200]!r}"
    return ""


LIMITS = (silent, half_heads, dripping_head, half_bodies, idle_connections, many_half_bodies, many_silent, too_large,
          unread, numbers, endless_template, grammars)  # fmt: skip


@attack(
    "limits",
    "silent, slow, half-sent, idle, unread, huge and endless requests: each is refused or closed, and others answered",
)
def at_the_limits(home: Path, tries: Tries) -> Row:
    forking.run(lambda: bool(make_runs(home / "served")))
    with served(home / "served", limits=SMALL) as place:

        def case(trick: Callable[[Place], str], draw: random.Random) -> str:
            problem = trick(place) or honest_answer(place)
            said = place.stderr.read_text(errors="replace").strip()
            return problem or (f"the server complains: {said[-300:]}" if said else "")

        return tries.each(LIMITS, case, short=len(LIMITS))


@attack(
    "open-server",
    "a server without a token on an address that other machines reach, and requests of other sites to one on this",
)
def without_a_token(home: Path, tries: Tries) -> Row:
    forking.run(lambda: bool(make_runs(home / "served")))

    def refused(host: str) -> str:
        program = SERVES.replace("token=token", f"host={host!r}, token=token").replace("server.run()", "")
        ended = subprocess.run(
            [sys.executable, "-c", program, home / "served", "", "{}", ENDLESS],
            capture_output=True,
            text=True,
            check=False,
        )
        return (
            "" if "there is no token" in ended.stderr else f"it listens on {host}: {ended.stdout}{ended.stderr[-300:]}"
        )

    with served(home / "served", open_to_all=True) as place:
        body = json.dumps(EINS).encode()

        def foreign(**headers: str) -> str:
            reply = exchange(place, request(place, "POST", "/v1/translate", body, **headers))
            return "" if status_of(reply) == 403 else f"{headers} -> {reply[:200]!r}"

        cases = {
            "every network": lambda: refused("0.0.0.0"),
            "IPv6": lambda: refused("::"),
            "another Host": lambda: foreign(Host=f"evil.example:{place.port}"),
            "another Origin": lambda: foreign(Origin="http://evil.example"),
            "an honest one": lambda: honest_answer(place),
        }
        return tries.each([*cases], lambda name, draw: cases[name](), short=len(cases))


@attack("server-signals", "one signal, and a second one while a request is computed: the server ends")
def signals_to_a_server(home: Path, tries: Tries) -> Row:
    forking.run(lambda: bool(make_runs(home / "served")))

    def case(number: signal.Signals, draw: random.Random) -> str:
        with served(home / "served") as place, socket.create_connection((HOST, place.port)) as connection:
            connection.sendall(ask(place, "/v1/completions", model="talker", prompt="the", max_tokens=4))
            time.sleep(draw.uniform(0.5, 1))
            for _ in range(2):
                os.kill(place.process, number)
                time.sleep(draw.uniform(0.5, 1))
            return outlived([place.process], patience=4.0)

    return tries.each([signal.SIGINT, signal.SIGTERM], case, full=8, short=2)
