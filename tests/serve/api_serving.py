"""A real server of small runs on this machine, in a thread, and plain clients for it."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.scheduler import Chosen, Finished, Scheduler
from clearhead.serve.api.routes import Api
from clearhead.serve.logs import Logs
from clearhead.serve.server import Server
from clearhead.text.templates import ChatTemplate

JSON = {"Content-Type": "application/json"}
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}the{% endif %}"


@dataclass
class Client:
    """Asks a server, a connection for each request."""

    server: Server
    token: str | None = None
    lines: list = field(default_factory=list)

    @property
    def models(self):
        api = self.server.services[0]
        assert isinstance(api, Api)
        return api.models.by_name

    @property
    def port(self):
        return self.server.place.port

    def send(self, method, path, body=None, headers=JSON):
        """The status, the headers and the body of a reply."""
        headers = dict(headers) | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()

    def get(self, path):
        status, headers, body = self.send("GET", path)
        return status, json.loads(body) if headers["Content-Type"] == "application/json" else body.decode()

    def post(self, path, **asked):
        status, _, body = self.send("POST", path, json.dumps(asked))
        return status, json.loads(body)

    def answer(self, path, **asked):
        """What a request that succeeds is answered."""
        status, found = self.post(path, **asked)
        assert status == 200, found
        return found

    def refused(self, path, **asked):
        """The status, the option and the message of a request that does not."""
        status, found = self.post(path, **asked)
        assert set(found) == {"error"}
        assert set(found["error"]) == {"message", "type", "param", "code"}
        return status, found["error"]["param"], found["error"]["message"]

    def stream(self, path, **asked):
        """The events of a stream, which must end as it should."""
        status, headers, body = self.send("POST", path, json.dumps({**asked, "stream": True}))
        assert (status, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8"), body
        *events, done, rest = body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def metric(self, name):
        """The sum of a metric over its labels."""
        rows = [line.rsplit(" ", 1) for line in self.get("/metrics")[1].splitlines() if not line.startswith("#")]
        return sum(float(value) for key, value in rows if key.partition("{")[0] == f"clearhead_{name}")

    @contextlib.contextmanager
    def raw(self, head, body=b""):
        """A socket to which a request was written, byte by byte."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(f"{head}\r\nHost: 127.0.0.1:{self.port}\r\n".encode() + body)
            yield connection


@contextlib.contextmanager
def serving(runs, token=None, **options):
    """A server that takes requests, and a client of it."""
    lines = []
    ours = {name: options.pop(name) for name in ("names", "scheduler", "adapters") if name in options}
    server = Server(Api(runs, **ours), token=token, logs=Logs("json", write=lines.append), **options)
    with running(server):
        yield Client(server, token, lines)


@contextlib.contextmanager
def running(server):
    """A server in a thread, from when it takes requests."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.state.ready)
        yield server
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


def eventually(holds):
    """Wait until something holds."""
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to hold")


def run_apart(coroutine):
    """Run it in a thread: a browser that an earlier test opened keeps its loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


class Slow(Scheduler):
    """Writes the token 5 for every job, one each step of a few milliseconds, to the end of its rules."""

    def __init__(self, model, pause=0.01):
        self.jobs, self.pause, self.next = {}, pause, 0

    def add(self, job):
        self.next += 1
        self.jobs[self.next] = (job, [])
        return self.next

    def cancel(self, ticket):
        self.jobs.pop(ticket, None)

    def step(self):
        time.sleep(self.pause)
        events = []
        for ticket, (job, written) in list(self.jobs.items()):
            written.append(5)
            events.append(Chosen(ticket, 5, -1.0))
            if len(written) == job.rules.max_new:
                del self.jobs[ticket]
                log_probs = (-1.0,) * len(written)
                one = Hypothesis(tokens=tuple(written), log_probs=log_probs, score=-1.0 * len(written), ended=False)
                events.append(Finished(ticket, [one]))
        return events

    @property
    def running(self):
        return len(self.jobs)

    @property
    def waiting(self):
        return 0


@pytest.fixture(scope="session")
def api_runs(tmp_path_factory):
    """A run of every kind, by the name it is served at; `talker` has a chat template."""
    from tests.training import small_runs

    kinds = {
        "translator": small_runs.translating,
        "documents": small_runs.documents,
        "stretch": small_runs.stretch,
        "filler": small_runs.filling,
        "classifier": small_runs.classifying,
        "talker": small_runs.documents,
    }
    runs = {name: small_runs.trained(kind, tmp_path_factory) for name, kind in kinds.items()}
    object.__setattr__(runs["talker"].folder, "chat", lambda: ChatTemplate(TEMPLATE))
    return runs


@pytest.fixture(scope="session")
def api(api_runs):
    """A client of a server of all these runs."""
    with serving(list(api_runs.values()), names=list(api_runs)) as client:
        yield client


@pytest.fixture
def slow(api_runs):
    """Starts a server whose decoder takes its time, with limits of its own; gives a client of it."""
    with contextlib.ExitStack() as stack:

        def start(*, pause=0.01, **options):
            scheduler = lambda model, context: Slow(model, pause)  # noqa: E731
            return stack.enter_context(serving([api_runs["stretch"]], names=["slow"], scheduler=scheduler, **options))

        yield start
