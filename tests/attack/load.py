"""Servers under load and attack at once: honest clients ask, and every answer is compared; beside them all attacks.

Honest clients are coroutines of one process and attackers of another, so that neither delays the other's clock. A
client asks again where it is told to wait, or where its idle connection was closed, as HTTP clients do; the time of an
answer counts from when it was first asked for.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from clearhead.training.run import load
from tests.attack import forking
from tests.attack.doors import STRANGERS
from tests.attack.servers import HOST, Line, Place, ask, make_runs, memory_of, request, served, status_of
from tests.attack.table import Row, Tries, attack
from tests.training.small_runs import labelled, pairs

ON_TIME = 5.0
"""Seconds in which an honest answer must come, on a machine that others use too."""
CLIENTS = 200
PAUSE = 5.0
"""Seconds between two questions of a client, on average."""
GROWTH = 1.1
"""What memory may become, after the first fifth of the time."""
JSON = (b"{", b"[]", b"\xff", b'{"input": NaN}', b"[" * 100_000, b'{"input": 3}', b'{"beam": ' + b"9" * 400 + b"}", b"")


def offline(home: Path) -> list[tuple[str, dict[str, Any], str]]:
    """Return questions as route, body and answer: what the runs answer alone and in a batch."""
    texts = sorted({text for text, _ in pairs(120, seed=9)})
    run = load(home / "translator" / "run", device="cpu")
    alone, batched = ([one for text in part for one in run.translate(text, beam=1)] for part in (
        [[text] for text in texts], [texts]))  # fmt: skip
    found = [
        ("/v1/translate", {"model": "translator", "input": text, "beam": 1}, answer)
        for text, answer, other in zip(texts, alone, batched, strict=True)
        if answer == other
    ]
    things = sorted({text for text, _ in labelled(60, seed=9)})
    labels = [one.label for one in load(home / "classifier" / "run", device="cpu").classify(things)]
    return found + [
        ("/v1/classify", {"model": "classifier", "input": text}, label)
        for text, label in zip(things, labels, strict=True)
    ]


async def honest(place: Place, questions: list[Any], until: float, draw: random.Random, found: dict[str, Any]) -> None:
    """Ask one question after another; note how it ended and how long it took."""
    line = Line(place)
    await asyncio.sleep(draw.uniform(0, PAUSE))
    while time.time() < until:
        route, body, answer = draw.choice(questions)
        since = time.monotonic()
        kind = await asked_until_answered(line, ask(place, route, **body), answer, found["waits"])
        seconds = time.monotonic() - since
        found["kinds"][kind] += 1
        found["seconds"].append(round(seconds, 3))
        await asyncio.sleep(draw.uniform(0.5, 1.5) * PAUSE)
    line.close()


async def asked_until_answered(line: Line, data: bytes, answer: str, waits: Counter[str]) -> str:
    """Return "right", or what was wrong with the answer."""
    for _ in range(20):
        try:
            status, body = await asyncio.wait_for(line.send(data), 120)
        except (OSError, asyncio.IncompleteReadError) as error:
            waits[type(error).__name__] += 1
            continue
        if status in (429, 503):
            waits[str(status)] += 1
            await asyncio.sleep(0.2)
            continue
        if status != 200:
            return f"status {status}"
        [one] = json.loads(body)["data"]
        return "right" if one.get("text", one.get("label")) == answer else f"wrong: {one!r:.200} for {answer!r}"
    return "never answered"


Attacker = Callable[[Place, random.Random], Awaitable[int | str]]


async def stranger(place: Place, draw: random.Random) -> int | str:
    """Try to get in: 200 is for who has the token."""
    reply = await sent(place, draw.choice(STRANGERS)(place, draw))
    return "let in" if 200 <= reply < 300 else "refused"


async def sent(place: Place, data: bytes) -> int:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection(HOST, place.port)
        with contextlib.closing(writer):
            writer.write(data)
            return status_of(await asyncio.wait_for(reader.readline(), 120))
    return 0


async def half_sent(place: Place, draw: random.Random) -> int | str:
    """Send nothing, half of a head or half of a body on many connections, and wait."""
    whole = ask(place, "/v1/translate", model="translator", input="eins" * 50)
    writers = []
    with contextlib.suppress(OSError):
        for _ in range(150):
            writers.append((await asyncio.open_connection(HOST, place.port))[1])
            writers[-1].write(whole[: draw.choice((0, 10, 100, len(whole) - 5))])
            await asyncio.sleep(0.005)
    await asyncio.sleep(draw.uniform(1, 25))
    for writer in writers:
        writer.close()
    return "closed"


async def large(place: Place, draw: random.Random) -> int | str:
    """Send up to a gigabyte, with its length or in pieces, as long as it is taken."""
    chunked = draw.random() < 0.5
    how = {"Transfer_Encoding": "chunked", "Content_Length": ""} if chunked else {"Content_Length": str(10**9)}
    reader, writer = await asyncio.open_connection(HOST, place.port)
    with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
        writer.write(request(place, "POST", "/v1/translate", b"", Authorization=f"Bearer {place.token}", **how))
        for _ in range(1000):
            writer.write(b"186a0\r\n" + b" " * 100_000 + b"\r\n" if chunked else b" " * 100_000)
            await writer.drain()
            await asyncio.sleep(0)
        return status_of(await asyncio.wait_for(reader.readline(), 120))
    return "reset"


async def bad_json(place: Place, draw: random.Random) -> int | str:
    body = draw.choice(JSON)
    return await sent(place, request(place, "POST", "/v1/translate", body, Authorization=f"Bearer {place.token}"))


async def endless_template(place: Place, draw: random.Random) -> int | str:
    talk = [{"role": "user", "content": "x"}]
    return await sent(place, ask(place, "/v1/chat/completions", model="talker", messages=talk))


async def leave(place: Place, draw: random.Random) -> int | str:
    """Ask for much and hang up, or never read."""
    data = ask(place, "/v1/translate", model="translator", input=["eins zwei drei"] * 100, beam=4, stream=False)
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(HOST, place.port)
        writer.write(data[: draw.choice((len(data), len(data), len(data) // 2))])
        await asyncio.sleep(draw.choice((0.05, 3)))
        writer.close()
    return "left"


ATTACKERS: dict[Attacker, tuple[tuple[int | str, ...], int, float]] = {
    stranger: (("refused",), 8, 0.2),
    half_sent: (("closed",), 6, 1.0),
    large: ((413, "reset", 408), 1, 5.0),
    bad_json: ((400,), 2, 0.5),
    endless_template: ((400, 429, 503), 1, 15.0),
    leave: (("left",), 1, 3.0),
}
"""What may come of each, how many do it at a time, and the seconds between two of its tries."""


async def under_attack(place: Place, until: float, seed: int, found: dict[str, Counter[str]]) -> None:
    async def repeat(attacker: Attacker, number: int) -> None:
        draw = random.Random(f"{seed} {attacker.__name__} {number}")
        while time.time() < until:
            try:
                came = await attacker(place, draw)
            except OSError:
                came = "reset"
            found.setdefault(attacker.__name__, Counter())[str(came)] += 1
            await asyncio.sleep(draw.uniform(0.5, 1.5) * ATTACKERS[attacker][2])

    await asyncio.gather(*(repeat(one, number) for one, (_, many, _) in ATTACKERS.items() for number in range(many)))


@attack(
    "load",
    "200 honest clients beside strangers, half-sent bodies, gigabytes, endless templates: right, on time, memory flat",
)
def under_load(home: Path, tries: Tries) -> Row:
    """Serve for so many minutes; a failure is a wrong or late answer, a stranger let in, and memory that grows."""
    minutes, clients = tries.minutes or (0.1 if tries.short else 1), 20 if tries.short else CLIENTS
    forking.run(lambda: bool(make_runs(home / "served")))
    questions = forking.run(lambda: offline(home / "served")).value
    with served(home / "served") as place:
        until = time.time() + 60 * minutes
        works = (
            lambda: ask_all(place, questions, until, tries.seed, clients),
            lambda: attack_all(place, until, tries.seed),
        )
        children = [forking.start(work, seconds=60 * minutes + 300) for work in works]
        memory = watch_memory(place, until)
        asked, attacked = (child.wait() for child in children)
        stderr = place.stderr.read_text(errors="replace").strip()
    if asked.value is None or attacked.value is None:
        return Row("", 1, [f"the clients broke down: {asked.err[-500:]}{attacked.err[-500:]}"])
    row = answers_row(asked.value)
    row.failures += [f"the server complains: {stderr[-300:]}"] if stderr else []
    row.failures += growth(memory)
    for attacker, (expected, _, _) in ATTACKERS.items():
        came = attacked.value.get(attacker.__name__, {})
        print(f"  {attacker.__name__}: {', '.join(f'{count:,} {kind}' for kind, count in came.items())}", flush=True)
        row.failures += [
            f"{attacker.__name__}: {kind}, {came[kind]} times" for kind in came if kind not in map(str, expected)
        ]
    row.note += f"; {memory[0]:,.0f}, {memory[len(memory) // 2]:,.0f}, {memory[-1]:,.0f} MB at start, middle and end"
    return row


def ask_all(place: Place, questions: list[Any], until: float, seed: int, clients: int) -> dict[str, Any]:
    found: dict[str, Any] = {"kinds": Counter(), "seconds": [], "waits": Counter()}

    async def work() -> None:
        draws = [random.Random(f"{seed} honest {i}") for i in range(clients)]
        await asyncio.gather(*(honest(place, questions, until, draw, found) for draw in draws))

    asyncio.run(work())
    return found


def attack_all(place: Place, until: float, seed: int) -> dict[str, Any]:
    found: dict[str, Counter[str]] = {}
    asyncio.run(under_attack(place, until, seed, found))
    return found


def watch_memory(place: Place, until: float) -> list[float]:
    """Return the MB of all processes of the server, measured about every 10 seconds and at the end."""
    found = [memory_of(place.process)]
    while (left := until - time.time()) > 0:
        time.sleep(min(10.0, left))
        found.append(memory_of(place.process))
        print(f"{left / 60:.1f} minutes left, {found[-1]:,.0f} MB", flush=True) if len(found) % 30 == 0 else None
    return found


def answers_row(asked: dict[str, Any]) -> Row:
    """Return the row of honest answers, with their times and how often one was asked for again."""
    seconds = sorted(asked["seconds"])
    row = Row(
        "", len(seconds), [kind for kind, count in asked["kinds"].items() if kind != "right" for _ in range(count)]
    )
    row.failures += [f"an answer after {one:.1f} s" for one in seconds if one > ON_TIME]
    if seconds:
        median, most, longest = (seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99, 1))
        row.note = f"median {median:.3f} s, 99 % {most:.2f} s, longest {longest:.2f} s"
    row.note += "; asked again: " + (", ".join(f"{count:,} {kind}" for kind, count in asked["waits"].items()) or "none")
    return row


def growth(memory: list[float]) -> list[str]:
    """Compare memory in the first fifth of the time, when what is kept is filled, with that of the rest."""
    fifth = len(memory) // 5 + 1
    settled, later = max(memory[:fifth]), max(memory[fifth:] or memory)
    return (
        [f"memory has grown from {settled:,.0f} to {later:,.0f} MB"] if fifth > 5 and later > GROWTH * settled else []
    )
