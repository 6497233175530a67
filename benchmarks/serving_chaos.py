"""The attacks of `python benchmarks/serving.py RUN --chaos`: all at once, while honest clients ask and check.

Slow readers, readers that read nothing, hang-ups in the middle, bodies of a gigabyte with and without their length, bad
JSON, floods past the limits, nonsense instead of HTTP, no token, and a run folder that is overwritten, removed and
replaced. Every attack expects its own statuses. Afterwards every text is asked for once more.
"""

import contextlib
import http.client
import json
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from measure import table
from serving import Offline, read_texts, serving

import clearhead as ch

CLIENTS = 8
BAD = (b"{", b"[]", b"\xff", b'{"input": NaN}', b"[" * 100_000, b'{"input": 3}', b'{"input": "eins", "beam": "x"}', b"")


class Attack:
    """One kind of attack: how often it was made, and which statuses came of it."""

    def __init__(self, name, expected):
        self.name, self.expected, self.statuses = name, expected, Counter()

    @property
    def wrong(self):
        return {status: count for status, count in self.statuses.items() if status not in self.expected}


def connect(served, **options):
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    return connection


def head(served, length, *, token=True):
    lines = [
        "POST /v1/translate HTTP/1.1",
        f"Host: 127.0.0.1:{served.port}",
        "Content-Type: application/json",
        length,
        *([f"Authorization: Bearer {served.token}"] if token else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(served, body, *, token=True, length=None):
    """Send a request byte by byte; return its status, 0 where the connection just ends."""
    with contextlib.suppress(OSError), connect(served) as one:
        one.sendall(head(served, length or f"Content-Length: {len(body)}", token=token) + body)
        line = one.makefile("rb").readline()
        return int(line.split()[1]) if line else 0
    return 0


def request(text, **options):
    return json.dumps({"input": text, **options}).encode()


def read_slowly(served, texts, draw):
    """Read a stream a few bytes at a time; it must come to its end, unless a flood was there first."""
    body = request(draw.choice(texts), beam=1, stream=True)
    with connect(served, SO_RCVBUF=4096) as one:
        one.sendall(head(served, f"Content-Length: {len(body)}") + body)
        got = b""
        while b"[DONE]" not in got and b" 429 " not in got and b" 503 " not in got and (piece := one.recv(64)):
            got += piece
            time.sleep(0.005)
    status = int(got.split()[1]) if got else 0
    return status if b"[DONE]" in got or status != 200 else 0


def read_nothing(served, texts, draw):
    """Ask for much, and never read."""
    body = request([draw.choice(texts) for _ in range(20)], beam=1, stream=True)
    with connect(served, SO_RCVBUF=4096) as one:
        one.sendall(head(served, f"Content-Length: {len(body)}") + body)
        time.sleep(draw.uniform(0.5, 3))
    return "left"


def hang_up(served, texts, draw):
    """Leave in the middle of a request, or of its answer."""
    body = request([draw.choice(texts) for _ in range(10)], beam=draw.choice((1, 4)))
    with connect(served) as one:
        sent = head(served, f"Content-Length: {len(body)}") + body
        one.sendall(sent[: draw.choice((len(sent), len(sent), len(sent) // 2, 20))])
        time.sleep(draw.uniform(0, 0.3))
    return "left"


def gigabyte(served, texts, draw):
    """Send a gigabyte, as long as it is taken."""
    chunked, piece, sent = draw.random() < 0.5, b" " * 1_000_000, 0
    with connect(served) as one:
        one.sendall(head(served, "Transfer-Encoding: chunked" if chunked else "Content-Length: 1000000000"))
        with contextlib.suppress(OSError):
            while sent < 1000:
                one.sendall(b"f4240\r\n" + piece + b"\r\n" if chunked else piece)
                sent += 1
        with contextlib.suppress(OSError, IndexError):
            return int(one.makefile("rb").readline().split()[1])
    return "reset"


def bad_json(served, texts, draw):
    return post(served, draw.choice(BAD))


def nonsense(served, texts, draw):
    with contextlib.suppress(OSError), connect(served) as one:
        one.sendall(random.Random(draw.random()).randbytes(300) + b"\r\n\r\n")
        line = one.makefile("rb").readline()
        return int(line.split()[1]) if line.startswith(b"HTTP") else "closed"
    return "closed"


def no_token(served, texts, draw):
    return post(served, request(draw.choice(texts)), token=False)


def flood(served, texts, draw):
    """Sixty requests of twenty texts at once: more than the queue takes."""
    found = []
    body = request([draw.choice(texts) for _ in range(20)], beam=1)
    threads = [threading.Thread(target=lambda: found.append(post(served, body))) for _ in range(60)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


ATTACKS = {
    read_slowly: (200, 429, 503),
    read_nothing: ("left",),
    hang_up: ("left",),
    gigabyte: (413, "reset"),
    bad_json: (400,),
    nonsense: (400, "closed"),
    no_token: (401,),
    flood: (200, 429, 503),
}


def replace_folder(folder, original, until):
    """Overwrite the files of a served run, remove it and put another there, again and again."""
    while time.monotonic() < until:
        for file in [path for path in folder.rglob("*") if path.is_file()]:
            file.write_bytes(b"\0" * (file.stat().st_size // 2))
        time.sleep(1)
        shutil.rmtree(folder)
        time.sleep(1)
        shutil.copytree(original, folder)
        time.sleep(1)


def ask_honestly(served, offline, until, kinds, seed):
    """Ask as a client should, again where the server says later, and compare every answer."""
    draw = random.Random(seed)
    while time.monotonic() < until:
        place, beam = draw.randrange(len(offline.texts)), draw.choice((1, 1, 1, 4))
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {served.token}"}
        try:
            connection.request("POST", "/v1/translate", request(offline.texts[place], beam=beam), headers)
            reply = connection.getresponse()
            found = json.loads(reply.read())
        except OSError as error:
            kinds[f"no reply: {type(error).__name__}"] += 1
            continue
        finally:
            connection.close()
        if reply.status in (429, 503):
            kinds["told to wait"] += 1
            time.sleep(0.2)
        elif reply.status != 200:
            kinds[f"status {reply.status}"] += 1
        else:
            [one] = found["data"]
            kinds[offline.compare(place, beam, one["text"], one["score"])] += 1


def attack(asked):
    """Attack a server for so many minutes; exit code 1 where a status or an answer was wrong."""
    run = ch.load(asked.run, device="cpu")
    offline = Offline(run, read_texts(asked, run)[:200], 4)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder = shutil.copytree(asked.run, place / "run")
        command = [sys.executable, "-m", "clearhead", "serve", str(folder), "--port", "0", "--log-format", "json"]
        with serving([*command, "--queue", "300", "--slots", str(asked.slots)], place) as served:
            memory = served.memory
            attacks, honest, after = under_attack(served, offline, asked, folder)
            grown = served.memory / memory
            running = {key: value for key, value in served.metrics().items() if "running" in key or "pending" in key}
        text = (place / "server.log").read_text(encoding="utf-8")
    rows = [[one.name, sum(one.statuses.values()), dict(one.statuses), one.wrong or "none"] for one in attacks]
    print(table(f"{asked.minutes:g} minutes of attacks", ["attack", "times", "statuses", "unexpected"], rows))
    leaked = sum(one in text for one in offline.texts if len(one) > 12)
    rows = [
        ["honest clients meanwhile", dict(honest)],
        ["every text asked for once more", dict(after)],
        ["left over", {key.removeprefix("clearhead_"): value for key, value in running.items() if value} or "nothing"],
        ["memory at the end, of that at the start", f"{grown:.2f}"],
        ["failures in the log", text.count('"event": "failure"')],
        ["texts in the log", leaked],
    ]
    print(table("The server", ["", ""], rows))
    good = {"same", "close", "told to wait"}
    if any(one.wrong for one in attacks) or set(honest) - good or set(after) - {"same", "close"} or leaked:
        raise SystemExit(1)


def under_attack(served, offline, asked, folder):
    until, kinds, after = time.monotonic() + asked.minutes * 60, Counter(), Counter()
    attacks = [Attack(make.__name__, expected) for make, expected in ATTACKS.items()]

    def repeat(make, one):
        draw = random.Random(one.name)
        while time.monotonic() < until:
            found = make(served, offline.texts, draw)
            one.statuses.update(found if isinstance(found, list) else [found])

    threads = [threading.Thread(target=repeat, args=pair) for pair in zip(ATTACKS, attacks, strict=True)]
    threads += [
        threading.Thread(target=ask_honestly, args=(served, offline, until, kinds, seed)) for seed in range(CLIENTS)
    ]
    threads.append(threading.Thread(target=replace_folder, args=(folder, asked.run, until)))
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    time.sleep(1)
    for place, text in enumerate(offline.texts):
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {served.token}"}
        connection.request("POST", "/v1/translate", request(text, beam=1), headers)
        [one] = json.loads(connection.getresponse().read())["data"]
        after[offline.compare(place, 1, one["text"], one["score"])] += 1
        connection.close()
    return attacks, kinds, after
