"""Waiting for a client: an answer is computed while it listens, in time, and sent whole or as server-sent events.

A client that hangs up stops what is computed for it. What a slow reader has not read yet is kept, up to a limit: the
batch never waits for it, and past the limit it is dropped. A connection that reads nothing at all for a minute is
closed by `clearhead.serve.connections`.
"""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from clearhead.errors import ClearheadError
from clearhead.serve.errors import ApiError, ClientGone, as_reply, error_object
from clearhead.serve.logs import Logs
from clearhead.training.reporting import replace_nonfinite

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"


async def answer_in_time(scope: Scope, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Return what the work returns. Cancel it where the client hangs up (ClientGone) or time is up (ApiError 504).

    The connection calls `on_hang_up` (`clearhead.serve.connections`): a task that waits for it would cost each request
    as much as reading its JSON.
    """
    task = asyncio.current_task()
    assert task is not None
    if scope.get("hung_up"):
        work.close()
        raise ClientGone
    hung_up = False

    def give_up() -> None:
        nonlocal hung_up
        hung_up = True
        task.cancel()

    scope["on_hang_up"] = give_up
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise out_of_time(seconds) from None
    except asyncio.CancelledError:
        if not hung_up or task.uncancel() > 0:  # the server itself is ending
            raise
        raise ClientGone from None
    finally:
        del scope["on_hang_up"]


def out_of_time(seconds: float) -> ApiError:
    message = f"the answer was not ready within {seconds:g} seconds; ask for fewer tokens, or for fewer texts at once"
    return ApiError(504, message, code="timeout")


async def wait_until_gone(receive: Receive) -> None:
    """Return when the client closes the connection. The body has been read, so nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Outgoing:
    """Events that wait to be sent. Putting one in never waits; ClientGone where too much is unread."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self.waiting: deque[bytes] = deque()
        self.arrived = asyncio.Event()
        self.closed = False

    def put(self, event: dict[str, Any]) -> None:
        text = json.dumps(replace_nonfinite(event), ensure_ascii=False, separators=(",", ":"))
        self.put_bytes(f"data: {text}\n\n".encode(errors="replace"))

    def put_bytes(self, data: bytes) -> None:
        if self.size + len(data) > self.most:
            raise ClientGone
        self.waiting.append(data)
        self.size += len(data)
        self.arrived.set()

    def close(self) -> None:
        self.closed = True
        self.arrived.set()

    async def take(self) -> bytes | None:
        """Return all that waits; None once it is closed and empty."""
        await self.arrived.wait()
        data = b"".join(self.waiting)
        self.waiting.clear()
        self.size -= len(data)
        if not self.closed:
            self.arrived.clear()
        return data or (None if self.closed else b"")


Producer = Callable[[Outgoing], Awaitable[None]]


class EventStream(Response):
    """A reply of server-sent events, put by `produce`. What fails before the first of them has a status of its own."""

    def __init__(self, produce: Producer, *, seconds: float, unread: int, logs: Logs) -> None:
        super().__init__(headers=HEADERS)
        self.produce, self.seconds, self.unread, self.logs = produce, seconds, unread, logs
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = Outgoing(self.unread)
        producing = asyncio.ensure_future(self.fill(out))
        sending = asyncio.ensure_future(self.send_all(out, producing, send))
        disconnected = asyncio.ensure_future(wait_until_gone(receive))
        try:
            await asyncio.wait((producing, sending, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if producing.done() and not isinstance(producing.exception(), ClientGone):
                await asyncio.wait((sending, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise ClientGone
            sending.result()
        finally:
            for task in (producing, sending, disconnected):
                task.cancel()
            await asyncio.gather(producing, sending, disconnected, return_exceptions=True)

    async def fill(self, out: Outgoing) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                await self.produce(out)
        except TimeoutError:
            raise out_of_time(self.seconds) from None
        finally:
            out.close()

    async def send_all(self, out: Outgoing, producing: "asyncio.Future[None]", send: Send) -> None:
        first = await out.take()
        if first is None:
            await producing  # raises what went wrong, for a reply with a status
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        data: bytes | None = first
        while data is not None:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            data = await out.take()
        try:
            await producing
            last = DONE
        except (ApiError, ClearheadError) as error:
            message = error_object(error if isinstance(error, ApiError) else ApiError(400, str(error)))
            last = f"data: {json.dumps(message)}\n\n".encode()
        except ClientGone:
            raise
        except Exception as error:
            self.logs.failure(error)
            last = f"data: {json.dumps(error_object(as_reply(error)))}\n\n".encode()
        await send({"type": "http.response.body", "body": last})
