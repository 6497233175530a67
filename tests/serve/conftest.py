"""A real server on this machine, in a thread, and a plain client for it."""

import contextlib
import http.client
import json
import socket
import urllib.parse

import pytest

from tests.serve.api_serving import api, api_runs, running, slow  # noqa: F401 - fixtures of every test here

PAGE = "<!doctype html><title>page</title>"


class Client:
    """Asks a server as a browser would, a connection for each request."""

    def __init__(self, server):
        self.place = server.place

    def send(self, method, path, body=None, headers=()):
        """The status, the headers and the body of a reply. The path is taken as it is, and begins with a slash."""
        connection = http.client.HTTPConnection("127.0.0.1", self.place.port, timeout=300)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()

    def get(self, path, **asked):
        """The reply to a GET of an address under the token: JSON, read, or bytes."""
        query = f"?{urllib.parse.urlencode(asked)}" if asked else ""
        status, headers, body = self.send("GET", f"/{self.place.token}/{path}{query}")
        return status, json.loads(body) if headers["Content-Type"] == "application/json" else (headers, body)

    def post(self, path, request):
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        headers = {"Content-Type": "application/json"}
        status, _, body = self.send("POST", f"/{self.place.token}/{path}", body, headers)
        return status, json.loads(body)

    def raw(self, request):
        """The status of what is written to a socket byte by byte; None where the connection just ends."""
        with socket.create_connection(("127.0.0.1", self.place.port), timeout=300) as connection:
            connection.sendall(request)
            first = connection.makefile("rb").readline()
            return int(first.split()[1]) if first else None


@contextlib.contextmanager
def serving(run, folder, budget=None, explorer=None, **options):
    """A server of a run, or of an explorer that is made already, with a page of one line."""
    from clearhead.serve.budget import AnswerBudget
    from clearhead.serve.explorer import Explorer
    from clearhead.serve.explorer_routes import ExplorerPages
    from clearhead.serve.logs import Tracebacks
    from clearhead.serve.server import Server

    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "assets" / "page-1_a.js").write_text("1")
    (folder.parent / "secret.txt").write_text("secret")
    pages = ExplorerPages(explorer or Explorer(run, budget or AnswerBudget()), folder)
    server = Server(pages, logs=Tracebacks(), **options)
    with running(server):
        yield server


@pytest.fixture(scope="module")
def client_of(tmp_path_factory):
    """Starts a server for a run, and gives a client of it; one server for each run of a module."""
    with contextlib.ExitStack() as open_servers:
        made = {}

        def client(run):
            key = str(run.folder.path)
            if key not in made:
                folder = tmp_path_factory.mktemp("page") / "static"
                made[key] = Client(open_servers.enter_context(serving(run, folder)))
            return made[key]

        yield client


@pytest.fixture(scope="session")
def script(tmp_path_factory):
    """The engine of a live page, as one file that node runs."""
    from tests.serve.live_engine import bundle

    return bundle(tmp_path_factory)
