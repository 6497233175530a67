"""The load of benchmarks/serving.py: many clients in one process of its own, whose processor time is told.

    python benchmarks/serving_load.py PLAN.json ANSWERS.json

The plan names the port, the token, the texts, how many clients ask and for how long. Each client has one connection and
asks again as soon as it is answered.
"""

import asyncio
import json
import random
import sys
import time
from pathlib import Path

WRONG = ("", "Bearer wrong-wrong-wrong-wrong", "Basic x")


async def ask(reader, writer, port, token, body):
    """The status, the headers and the body of a reply, on a connection that stays open."""
    data = json.dumps(body).encode()
    head = f"POST /v1/translate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: {token}\r\n" if token else ""
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    if "content-length" in headers:
        return int(lines[0].split()[1]), await reader.readexactly(int(headers["content-length"]))
    found = b""
    while size := int(await reader.readline(), 16):
        found += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return int(lines[0].split()[1]), found


def text_of(reply, stream):
    """The answer and its score."""
    if not stream:
        [one] = json.loads(reply)["data"]
        return one["text"], one["score"]
    events = [json.loads(line[6:]) for line in reply.decode().split("\n\n") if line.startswith("data: {")]
    pieces = [event for event in events if "index" in event]
    return "".join(event["text"] for event in pieces), pieces[-1]["log_prob"]


async def client(number, plan, until, kept):
    """One client: asks until the time is over."""
    draw = random.Random(number)
    port, texts = plan["port"], plan["texts"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    asked = 0
    while time.perf_counter() < until:
        asked += 1
        place = draw.randrange(len(texts))
        kind = draw.random()
        beam = plan["beam"] if kind < plan["beams"] else 1
        stream = beam == 1 and kind > 1 - plan["streams"]
        token = f"Bearer {plan['token']}"
        if number < 3 and asked % 20 == 0:
            token = WRONG[number]
        body = {"input": texts[place], "beam": beam, "stream": stream}
        began = time.perf_counter()
        status, reply = await ask(reader, writer, port, token, body)
        seconds = time.perf_counter() - began
        if token != f"Bearer {plan['token']}":
            kept["without"].append(status)
        elif status != 200:
            kept["failed"].append([status, reply.decode(errors="replace")[:200]])
        else:
            kind = "answers" if time.perf_counter() <= until else "late"
            kept[kind].append([place, beam, seconds, *text_of(reply, stream)])
    writer.close()


async def load(plan):
    kept = {"answers": [], "late": [], "without": [], "failed": [], "lost": 0}
    until = time.perf_counter() + plan["seconds"]
    work = [client(number, plan, until, kept) for number in range(plan["clients"])]
    began, used = time.perf_counter(), time.process_time()
    for error in await asyncio.gather(*work, return_exceptions=True):
        if error is not None:
            kept["lost"] += 1
            kept["failed"].append([0, repr(error)])
    kept["wall"], kept["processor"] = time.perf_counter() - began, time.process_time() - used
    return kept


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(load(plan))))
