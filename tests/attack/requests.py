"""Attack a real server with random and mutated requests: seeded, over kept connections, beside silent ones.

`attack_server(100_000, seed=0)` sends so many requests; `attack_server(60.0, seed=0)` sends them for so many seconds.
"""

import asyncio
import collections
import contextlib
import json
import random
import tempfile
import time
import urllib.parse
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.attack.servers import Place, make_runs, request, served
from tests.attack.table import Row, Tries, attack

CLIENTS = 8
SILENT = 1000
GROWTH = 0.05
"""The share by which memory may grow after the first fifth of the requests."""
WARM = 0.2
"""Share of the requests after which memory is measured for the first time: what is kept has been filled by then."""
UNCLEAR = (b"this should not happen", b"Traceback", b"please report")
SITES = ("encoder.0.attention", "decoder.0.attention", "decoder.0.cross")
INSIDE = ("tile", "thumbs", "row", "column", "cell", "vectors", "readings", "lens", "effects", "stream", "spaces",
          "sequence", "box", "terms")  # fmt: skip
NAMES = ("decoder.embedding.out", "encoder.0.feed_forward.hidden", "decoder.0.cross.weight", "decoder.output.logits")
BOXES = (
    "decoder.output",
    "encoder.0.attention",
    "decoder.0.feed_forward",
    "decoder.0.cross",
    "encoder.embedding.token",
)
ODD = (
    "",
    "-1",
    "0x1",
    "1e3",
    "9" * 30,
    "NaN",
    "٣",
    "a" * 300,
    "../..",
    "%00",
    "<script>",
    "null",
    "[]",
    "1,1",
    "ä",
    "inf",
)
WORDS = ("null", "eins", "zwei", "drei", "vier")


class Sender:
    """Draws one request after another."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place, self.draw = place, random.Random(seed)
        self.traces = ["0" * 24]

    def request(self) -> bytes:
        make = self.draw.choices(
            (self.question, self.refused_question, self.outside, self.post, self.health), (12, 40, 30, 14, 4)
        )[0]
        return make()

    def message(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        return request(self.place, method, path, body if method == "POST" else None, **headers)

    def health(self) -> bytes:
        return self.message(
            "GET", f"/{self.place.token}/{self.draw.choice(('api/health', 'api/run', '', 'index.html'))}"
        )

    def parameters(self, name: str) -> dict[str, str]:
        """Parameters with which this question is answered, of a text that has these places."""
        draw = self.draw
        head = draw.choice(("0", "1", "mean")) if name in ("tile", "row", "column") else str(draw.randrange(2))
        found = {"site": draw.choice(SITES), "head": head, "query": "1", "key": str(draw.randrange(3)), "row": "0"}
        found |= {"step": draw.choice(("weight", "score", "allowed")), "level": str(draw.randrange(4)), "column": "0"}
        found |= {
            "role": draw.choice(("query", "key", "value", "context")),
            "side": draw.choice(("encoder", "decoder")),
        }
        found |= {"places": "0,1", "box": draw.choice(BOXES), "token": "1", "unit": str(draw.randrange(20))}
        if name in ("effects", "lens", "readings"):
            found["site"] = SITES[0]
        return found | ({"name": draw.choice(NAMES)} if name == "terms" else {})

    def question(self) -> bytes:
        """One about a trace that is answered, for the most part."""
        name = self.draw.choices(INSIDE, [1 if one in ("effects", "lens", "sequence") else 6 for one in INSIDE])[0]
        return self.ask(name, self.draw.choice(self.traces), self.parameters(name))

    def refused_question(self) -> bytes:
        """The same with something wrong: a value, a name, or the trace."""
        draw = self.draw
        name = draw.choice((*INSIDE, "nothing"))
        found = self.parameters(name)
        for wrong in draw.sample(sorted(found), draw.randint(1, 4)):
            found[wrong] = draw.choice((*ODD, str(draw.randrange(-5, 10**6))))
        if draw.random() < 0.3:
            del found[draw.choice(sorted(found))]
        trace = draw.choice((*self.traces, "x", "0" * 24, "f" * 24)) if draw.random() < 0.5 else "0" * 24
        return self.ask(name, trace, found)

    def ask(self, name: str, trace: str, parameters: dict[str, str]) -> bytes:
        query = urllib.parse.urlencode(parameters)
        return self.message("GET", f"/{self.place.token}/api/trace/{trace}/{name}?{query}")

    def outside(self) -> bytes:
        """One that the guard turns away: the token, the host, the origin, the method or the path is not right."""
        draw, token, own = self.draw, self.place.token, f"127.0.0.1:{self.place.port}"
        match draw.randrange(6):
            case 0:
                return self.message("GET", f"/{''.join(draw.sample(token, len(token)))}/api/run")
            case 1:
                return self.message(
                    "GET", f"/{token}/api/run", Host=draw.choice(("evil.example", "", "[::2]", f"{own}x"))
                )
            case 2:
                return self.message(
                    "GET", f"/{token}/api/run", Origin=draw.choice(("http://evil.example", "null", own))
                )
            case 3:
                return self.message(draw.choice(("PUT", "DELETE", "PATCH", "OPTIONS", "BREW")), f"/{token}/api/trace")
            case 4:
                tricks = ("../secret", "%2e%2e/x", "api//run", ".env", "index.html;x", "api/trace/%2e%2e/tile")
                return self.message("GET", f"/{token}/{draw.choice((*tricks, 'x' * 9000))}")
            case _:
                return self.message("POST", f"/{token}/api/trace", b"{}", Content_Type=draw.choice(("text/plain", "a")))

    def post(self) -> bytes:
        """A body that asks for a trace, a search or a word in texts; most have something wrong."""
        draw = self.draw
        name = draw.choice(("trace", "trace", "trace", "context", "decode"))
        text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 2)))
        bodies: dict[str, dict[str, Any]] = {
            "trace": {"source": text, "target": "12", "edits": [self.edit() for _ in range(draw.randint(0, 1))]},
            "context": {"texts": [text], "word": text.split()[0]},
            "decode": {"source": text, "beam": 2, "max_new": 2},
        }
        body = bodies[name]
        if draw.random() < 0.85:
            wrong = draw.choice((None, True, -1, 1e308, [], {}, "", "\ud800", "x" * 2000, [[]], 2**60, {"a": 1}))
            body[draw.choice((*body, "step", "nothing"))] = wrong
        sent = json.dumps(body).encode()
        if draw.random() < 0.2:
            place = draw.randrange(len(sent))
            sent = sent[:place] + bytes([draw.randrange(256)]) + sent[place + draw.randrange(2) :]
        return self.message("POST", f"/{self.place.token}/api/{name}", sent)

    def edit(self) -> dict[str, Any]:
        draw = self.draw
        value = draw.choice((0.0, -3.0, 1e38, 1e300, 2.5))
        step = draw.choice(("query", "score", "weight", "context", "allowed", "value", "masked", "residual"))
        found = {"at": draw.choice((*SITES, "decoder.7.cross")), "step": step, draw.choice(("to", "times")): value}
        return found | draw.choice(({}, {"head": 0}, {"query": 0, "key": 0}, {"query": 99}))


class Count:
    """What came back."""

    def __init__(self, limit: float) -> None:
        self.sent, self.limit, self.by_time = 0, limit, isinstance(limit, float)
        self.statuses: collections.Counter[int] = collections.Counter()
        self.unanswered, self.left, self.unclear = 0, 0, 0
        self.examples: list[str] = []
        self.started = time.monotonic()

    @property
    def share(self) -> float:
        """How much of the attack is over."""
        return (time.monotonic() - self.started if self.by_time else self.sent) / self.limit

    def add(self, request: bytes, status: int, body: bytes) -> None:
        self.statuses[status] += 1
        unclear = any(one in body for one in UNCLEAR)
        self.unclear += unclear
        if (unclear or status >= 500) and len(self.examples) < 10:
            self.examples.append(f"{request[:600]!r} -> {status} {body[:300]!r}")


async def reply_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    body = await reader.readexactly(int(length.split(b":")[1]))
    if b"\r\nconnection: close" in head.lower():
        raise Closed(status, body)
    return status, body


class Closed(Exception):
    """A reply after which the connection ends."""


async def client(place: Place, sender: Sender, count: Count) -> None:
    """Send one request after another; a connection that ends is made anew, and some are left before the answer."""
    writer = None
    reader = asyncio.StreamReader()
    while count.share < 1:
        if writer is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        request = sender.request()
        count.sent += 1
        writer.write(request)
        if sender.draw.random() < 0.005:
            count.left += 1
            writer.close()
            writer = None
            continue
        try:
            status, body = await asyncio.wait_for(reply_of(reader), 300)
        except Closed as error:
            status, body = error.args
            writer.close()
            writer = None
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            count.unanswered += 1
            writer.close()
            writer = None
            continue
        if request.startswith(b"POST") and status == 200 and b'"sites"' in body[:100_000]:
            sender.traces = [*sender.traces[-7:], json.loads(body)["id"]]
        count.add(request, status, body)
    if writer is not None:
        writer.close()


@contextlib.asynccontextmanager
async def silent_ones(place: Place, number: int) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Connections that send nothing, or half of a head."""
    made = []
    for i in range(number):
        _, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write((b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-")[i % 3])
        made.append(writer)
    try:
        yield made
    finally:
        for writer in made:
            writer.close()


async def attacked(place: Place, count: Count, seed: int, silent: int) -> list[int]:
    """Run the clients, in the second half beside silent connections; return memory after warming up and at the end."""
    clients = [asyncio.create_task(client(place, Sender(place, seed * CLIENTS + i), count)) for i in range(CLIENTS)]
    memory = []
    for until in (WARM, 0.5):
        while count.share < until and not all(one.done() for one in clients):
            await asyncio.sleep(0.05)
        memory.append(resident(place.process))
    async with silent_ones(place, silent):
        await asyncio.gather(*clients)
    await asyncio.sleep(0.2)  # so that the loop ends after its connections
    return [memory[0], resident(place.process)]


def resident(process: int) -> int:
    """Return the bytes of memory that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


def attack_server(seconds_or_count: float, seed: int = 0, *, silent: int = SILENT) -> dict[str, Any]:
    """Attack a server with so many requests (an int), or for so many seconds (a float), and say what came back.

    Wanted: no `server_errors`, nothing `unclear`, `stderr` empty, all answered but those that were left, and `growth`
    (of memory, after a fifth of the requests) near 0.
    """
    # a client that is kept waiting by a busy machine is answered too
    with tempfile.TemporaryDirectory() as folder, served(make_runs(Path(folder)), limits={"idle": 600.0}) as place:
        count = Count(seconds_or_count)
        with ThreadPoolExecutor(1) as pool:  # a browser of an earlier test may keep its loop running in this thread
            before, after = pool.submit(asyncio.run, attacked(place, count, seed, silent)).result()
        seconds = time.monotonic() - count.started
        stderr = place.stderr.read_text(errors="replace")
    return {
        "requests": count.sent,
        "statuses": dict(sorted(count.statuses.items())),
        "server_errors": sum(n for status, n in count.statuses.items() if status >= 500),
        "unclear": count.unclear,
        "left": count.left,
        "unanswered": count.unanswered,
        "examples": count.examples,
        "silent": silent,
        "rss_before": before,
        "rss_after": after,
        "growth": after / before - 1,
        "stderr": stderr[:2000],
        "seconds": seconds,
    }


@attack(
    "requests", "random and mutated requests to the explorer beside silent connections; its memory before and after"
)
def requests(home: Path, tries: Tries) -> Row:
    found = attack_server(
        tries.count or (600 if tries.short else 50_000), tries.seed, silent=50 if tries.short else SILENT
    )
    wrong = found["server_errors"] + found["unclear"] + found["unanswered"]
    told = [*found["examples"], found["stderr"] or "not answered, or answered with an error of the server's own"]
    row = Row("", found["requests"], [told[min(i, len(told) - 1)] for i in range(wrong)])
    row.failures += [found["stderr"]] if found["stderr"] else []
    memory = f"{found['rss_before'] / 1e6:,.0f} MB and {found['rss_after'] / 1e6:,.0f} MB"
    if not tries.short and found["growth"] > GROWTH:
        row.failures.append(f"memory has grown: {memory}")
    row.note = f"{found['statuses'].get(200, 0):,} answered, the others refused; {memory}"
    return row
