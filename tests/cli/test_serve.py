"""`clearhead serve`: an address, a server behind it, and an end by SIGTERM once what is under way is answered."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.cli import run
from clearhead.serve import server
from tests.serve.api_serving import eventually

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)\n")
TOKEN = "kepler-school-lesson-7"


@pytest.mark.slow
def test_it_serves_until_sigterm_and_answers_what_is_under_way(stretch):
    """In a process of its own, as under systemd."""
    script = f"from clearhead.cli import main; main(['serve', {str(stretch.folder.path)!r}, '--port', '0', "
    script += "'--name', 'text', '--log-format', 'json'])"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CLEARHEAD_TOKEN": TOKEN}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        found = ADDRESS.fullmatch(process.stdout.readline())
        assert found, process.stderr.read()
        assert json.loads(process.stderr.readline())["event"] == "ready"
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=300)
        body = json.dumps({"prompt": "the", "max_tokens": 600, "temperature": 0, "stream": True})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        connection.request("POST", "/v1/completions", body, headers)
        reply = connection.getresponse()
        assert (reply.status, reply.readline()[:6]) == (200, b"data: ")
        process.send_signal(signal.SIGTERM)
        rest = reply.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        connection.close()
        out, err = process.communicate(timeout=300)
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert (process.returncode, out) == (0, "")
    assert events == ["draining", "request", "stopped"]


@pytest.fixture
def unserved(monkeypatch):
    """Servers that end at once, and how they were made."""
    made = []
    monkeypatch.setattr(server.Server, "run", lambda self: (made.append(self), self.socket.close()))
    return made


@pytest.fixture
def command(capsys, plain_terminal, unserved):
    def ran(*args):
        code = run(["serve", *map(str, args)])
        return code, *capsys.readouterr()

    return ran


def test_elsewhere_than_loopback_there_must_be_a_token(command, classifier, unserved, tmp_path):
    path = classifier.folder.path
    for host in ("0.0.0.0", "::"):
        code, out, err = command(path, "--host", host, "--port", 0)
        assert (code, out) == (2, "")
        assert f"--host: {host} can be reached from other machines, and there is no token" in err
        assert "--token-file" in err
    assert command(path, "--host", "localhost", "--port", 0)[0] == 0
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    for given in (("--token", TOKEN), ("--token-file", token)):
        assert command(path, "--host", "0.0.0.0", "--port", 0, *given)[2] == ""
    assert [one.place.token for one in unserved] == [None, TOKEN, TOKEN]


def test_limits_and_names_reach_the_server(command, classifier, translator, unserved):
    paths = classifier.folder.path, translator.folder.path
    names = ("--name", "classes", "--name", "words")
    limits = ("--queue", 7, "--memory", 9, "--slots", 3, "--drain-seconds", 1, "--replicas", 2)
    assert command(*paths, *names, "--port", 0, *limits)[0] == 0
    [made] = unserved
    [api] = made.services
    assert api.replicas == 2
    assert list(api.models.by_name) == ["classes", "words"]
    assert (made.limits.queue, made.limits.memory, made.limits.drain) == (7, 9_000_000, 1.0)
    assert api.models.by_name["words"].worker.scheduler.slots == 3


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--token", "short"), 2, "it needs 16 characters at least"),
        (("--token-file", "nowhere"), 1, "--token-file: nowhere cannot be read"),
        (("--token", TOKEN, "--token-file", "x"), 2, "leave one of them out"),
        (("--ssl-keyfile", "x"), 2, "add --ssl-certfile"),
        (("--name", "a", "--name", "b"), 2, "1 runs and 2 names"),
        (("--queue", "0"), 2, "--queue"),
        (("--log-format", "xml"), 2, "--log-format"),
    ],
)
def test_wrong_options_are_told_in_a_line(command, classifier, options, code, said):
    found, _, err = command(classifier.folder.path, "--port", 0, *options)
    assert (found, said in err) == (code, True), err
    assert len(err.splitlines()) <= 3


def test_a_folder_that_is_no_run_is_told(command, tmp_path):
    code, _, err = command(tmp_path, "--port", 0)
    assert code == 1
    assert str(tmp_path) in err


NEVER_ENDS = """
import sys, time
from clearhead.serve.api import routes, served
from clearhead.text.templates import ChatTemplate
from clearhead.training.folder import RunFolder
from tests.serve.api_serving import Slow

class Stuck(Slow):
    def step(self):
        print("stuck", file=sys.stderr, flush=True)
        time.sleep(10**6)

class Template:
    def render(self, messages, *, tools=()):
        print("stuck", file=sys.stderr, flush=True)
        time.sleep(10**6)

IN_THREAD = False
if IN_THREAD:
    routes.can_fork = lambda device: False
RunFolder.chat = lambda self: Template()
served.batched = lambda slots: lambda model, context: Stuck(model)
from clearhead.cli import main
main(["serve", sys.argv[1], "--port", "0", "--name", "it", "--drain-seconds", sys.argv[2], "--seconds", sys.argv[3]])
"""


@contextlib.contextmanager
def stuck_server(run, path, *, drain, seconds, threads):
    """A server whose model, or chat template, never ends what it computes; and the reply to a request for it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = NEVER_ENDS if threads else NEVER_ENDS.replace("IN_THREAD = False", "IN_THREAD = True")
    command = [sys.executable, "-c", script, str(run.folder.path), str(drain), str(seconds)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            found = ADDRESS.fullmatch(process.stdout.readline())
            assert found, process.stderr.read()
            while "ready" not in process.stderr.readline():
                pass
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=300)
            asked = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
            connection.request("POST", path, json.dumps(asked), {"Content-Type": "application/json"})
            assert process.stderr.readline() == "stuck\n"
            yield process, connection
            connection.close()
        finally:
            process.kill()


def children_of(process):
    return [int(one) for one in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "own_process"),
    [
        ("/v1/completions", True),
        pytest.param("/v1/completions", False, marks=pytest.mark.thorough),
        pytest.param("/v1/chat/completions", True, marks=pytest.mark.thorough),
    ],
)
def test_a_second_signal_ends_it_at_once_whatever_it_computes(stretch, path, own_process):
    with stuck_server(stretch, path, drain=10**6, seconds=10**6, threads=own_process) as (process, _):
        models = children_of(process)
        assert bool(models) == own_process
        process.send_signal(signal.SIGTERM)
        while "draining" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == -signal.SIGTERM
        eventually(lambda: not any(Path(f"/proc/{one}").exists() for one in models))


@pytest.mark.slow
def test_a_template_that_never_ends_is_given_up_and_holds_nobody_up(stretch):
    with stuck_server(stretch, "/v1/chat/completions", drain=0, seconds=0.5, threads=True) as (process, connection):
        assert connection.getresponse().status == 504
        other = http.client.HTTPConnection("127.0.0.1", connection.port, timeout=300)
        other.request("GET", "/healthz")
        assert other.getresponse().status == 200
        other.close()
        process.send_signal(signal.SIGTERM)  # one is enough, though a thread still renders
        assert process.wait(300) in (0, 1)


def test_both_tables_are_served_with_explore(command, classifier, unserved, monkeypatch, tmp_path):
    from clearhead.serve import explorer_routes

    (tmp_path / "index.html").write_text("page")
    monkeypatch.setattr(explorer_routes, "STATIC", tmp_path)
    code, out, _ = command(classifier.folder.path, "--port", 0, "--explore", "--host", "0.0.0.0")
    address, page = out.split()
    assert (code, page.startswith(f"{address}/"), len(unserved[0].place.token) > 20) == (0, True, True)
    assert [type(one).__name__ for one in unserved[0].services] == ["Api", "ExplorerPages"]
    api, pages = unserved[0].services
    [served], explored = [run.model for run in api.runs.values()], pages.explorer.run.model
    shared = zip(served.parameters(), explored.parameters(), strict=True)
    assert all(one is other for one, other in shared)
    assert not {*served.modules()} & {*explored.modules()}
