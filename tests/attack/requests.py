"""Attack a real server with requests drawn from its own schema: seeded, over kept connections, beside silent ones.

Every route of the API and the explorer is asked; strangers without the token are in tests/attack/doors.py.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.attack import forking
from tests.attack.servers import HOST, Line, Place, exchange, make_runs, memory_of, request, served
from tests.attack.table import Row, Tries, attack
from tests.serve.requests_by_schema import KNOWN, Maker

CLIENTS = 8
SILENT = 1000
GROWTH = 1.05
"""What memory may become after the first fifth of the requests."""
SETTLED = 5_000
"""Requests after which memory has settled."""
LEFT = 0.005
"""Share of the requests that a client does not wait for."""
WARM = 0.2
"""Share of the requests after which memory is measured for the first time: what is kept has been filled by then."""
LONGEST = 2_000
"""The most bytes of a refusal."""
UNCLEAR = (b"this should not happen", b"Traceback", b"please report")
MODELS = {"/v1/translate": "translator", "/v1/classify": "classifier", "/v1/completions": "writer"}


class Sender:
    """Draws one request after another, to any route of the API and the explorer: of the first ones, those of all
    clients together, each field of each route has a value of 400 digits, and an odd one.
    """

    def __init__(self, place: Place, schema: Any, seed: int, number: int) -> None:
        self.place = place
        known = {**KNOWN, "model": tuple(MODELS.values()), "trace": ("0" * 24,)}
        self.first = [*Maker(schema, seed, known, MODELS).requests(1)][number::CLIENTS]
        self.maker = Maker(schema, seed * CLIENTS + number, known, MODELS)
        self.draw = self.maker.draw

    def request(self) -> bytes:
        method, path, body = self.first.pop() if self.first else self.maker.any_request()
        if body and self.draw.random() < 0.1:  # one byte of it is another one
            at = self.draw.randrange(len(body))
            body = body[:at] + bytes([self.draw.randrange(256)]) + body[at + self.draw.randrange(2) :]
        return request(self.place, method, f"/{self.place.token}{path}", body)

    def learn(self, body: bytes) -> None:
        """Ask about a trace that was made, from now on."""
        self.maker.known["trace"] = (*self.maker.known["trace"][-7:], json.loads(body)["id"])


class Count:
    """What came back, and which replies were wrong."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.sent, self.answered, self.refused = wanted, 0, 0, 0
        self.wrong: list[str] = []

    @property
    def share(self) -> float:
        """How much of the attack is over."""
        return self.sent / self.wanted

    def add(self, request: bytes, status: int, body: bytes) -> None:
        self.answered += status == 200
        self.refused += 400 <= status < 500
        too_long = status >= 400 and len(body) > LONGEST
        if status not in range(200, 500) or too_long or any(one in body for one in UNCLEAR):
            self.wrong.append(f"{request[:600]!r} -> {status} {body[:300]!r}")


async def client(sender: Sender, count: Count) -> None:
    """Send one request after another on a connection; some are left before the answer."""
    line = Line(sender.place)
    while count.share < 1:
        request = sender.request()
        count.sent += 1
        try:
            waiting = 0.001 if sender.draw.random() < LEFT else 300
            status, body = await asyncio.wait_for(line.send(request), waiting)
        except (asyncio.IncompleteReadError, OSError) as error:  # a timeout is one too
            count.wrong += [f"{request[:600]!r} -> {error!r}"] if waiting == 300 else []
            continue
        if status == 200 and request.startswith(b"POST") and b"/api/trace " in request[:200]:
            sender.learn(body)
        count.add(request, status, body)
    line.close()


@contextlib.asynccontextmanager
async def silent_ones(place: Place, number: int) -> AsyncIterator[None]:
    """Hold connections that send nothing, or half of a head."""
    made = []
    for i in range(number):
        made.append((await asyncio.open_connection(HOST, place.port))[1])
        made[-1].write((b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-")[i % 3])
    yield
    for writer in made:
        writer.close()


async def attacked(place: Place, count: Count, seed: int, silent: int) -> tuple[float, float]:
    """Run the clients, in the second half beside silent connections; return memory after warming up and at the end."""
    reply = exchange(place, request(place, "GET", f"/{place.token}/openapi.json"))
    schema = json.loads(reply.partition(b"\r\n\r\n")[2])
    senders = [Sender(place, schema, seed, number) for number in range(CLIENTS)]
    clients = [asyncio.create_task(client(sender, count)) for sender in senders]
    memory = []
    for until in (WARM, 0.5):
        while count.share < until and not all(one.done() for one in clients):
            await asyncio.sleep(0.05)
        memory.append(memory_of(place.process))
    async with silent_ones(place, silent):
        await asyncio.gather(*clients)
    await asyncio.sleep(0.2)  # so that the loop ends after its connections
    return memory[0], memory_of(place.process)


@attack(
    "requests",
    "requests to every route, drawn from its schema with odd values, beside silent connections: no error of the "
    "server's, and memory stays",
)
def requests(home: Path, tries: Tries) -> Row:
    count = Count(tries.count or (600 if tries.short else 6_000))
    forking.run(lambda: bool(make_runs(home / "served")))
    # a client that is kept waiting by a busy machine is answered too
    with served(home / "served", limits={"idle": 600.0, "tokens": 16}) as place:
        before, after = asyncio.run(attacked(place, count, tries.seed, 50 if tries.short else SILENT))
        stderr = place.stderr.read_text(errors="replace")
    row = Row("", count.sent, count.wrong + ([stderr[:2000]] if stderr else []))
    row.note = f"{count.answered:,} answered, {count.refused:,} refused; {before:,.0f} MB and {after:,.0f} MB"
    if count.wanted >= SETTLED and after > GROWTH * before:
        row.failures.append(f"memory has grown: {row.note}")
    return row
