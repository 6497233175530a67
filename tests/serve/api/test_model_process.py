"""The model's own process: it answers as the same scheduler here does, and its death is told and ends the server."""

import asyncio
import contextlib
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from clearhead.decoding import Beam, Grammar, Greedy, Rules, Sample, TokenBytes
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.scheduler import Chosen, Finished, Job
from clearhead.errors import OptionError
from clearhead.serve.api.jobs import JobLoop
from clearhead.serve.api.model_process import Frames, ModelProcess, SocketLink, can_fork, pack
from clearhead.serve.api.worker import Worker
from clearhead.serve.app import Front
from clearhead.serve.errors import ApiError
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Logs
from tests.serve.api_serving import Slow, eventually, run_apart

pytestmark = pytest.mark.skipif(not can_fork(torch.device("cpu")), reason="this system cannot fork")
JOB = Job(inputs=(1,), rules=Rules(max_new=3))
TOKEN = "kepler-school-lesson-7"


@contextlib.contextmanager
def linked(make, lines):
    """A worker whose scheduler is at the other end of a socket: in a thread here, where a test can see it."""
    ours, theirs = socket.socketpair()
    made = Worker("it", make, Front(limits=Limits(), logs=Logs("json", write=lines.append)))
    side = JobLoop(SocketLink(theirs), made.scheduler, make)
    thread = threading.Thread(target=side.run)
    made.processes = [ModelProcess("it", made.front, ours, 0)]
    made.processes[0].end = lambda: 0  # there is no process to end: 0 would be all of this group
    thread.start()
    try:
        yield made, side
    finally:
        ours.close()
        thread.join(60)
        theirs.close()
        assert not thread.is_alive()


def run(make, work):
    """What `work` returns on a loop, given the worker and the other side; and the lines of the log."""
    lines = []

    async def whole():
        with linked(make, lines) as (made, side):
            await made.processes[0].connect()
            try:
                return await work(made, side)
            finally:
                made.processes[0].closing = True
                made.processes[0].transport.abort()

    return run_apart(whole()), [json.loads(line) for line in lines]


def test_tokens_come_to_those_who_want_them_and_the_end_to_all():
    async def work(made, side):
        jobs = [made.decode(JOB, each_token=True), made.decode(JOB)]
        found = [[await jobs[0].next_event() for _ in range(4)], [await jobs[1].next_event()]]
        assert not made.processes[0].decodings
        assert not side.jobs
        return found

    (tokens, whole), lines = run(lambda: Slow(None, 0), work)
    assert [type(event) for event in tokens] == [Chosen] * 3 + [Finished]
    assert [event.token for event in tokens[:3]] == [5, 5, 5]
    assert whole[0].hypotheses == tokens[-1].hypotheses
    assert whole[0].hypotheses[0].tokens == (5, 5, 5)
    assert lines == []


def test_nothing_runs_any_more_once_the_last_job_is_dropped():
    async def work(made, side):
        job = made.decode(Job(inputs=(1,), rules=Rules(max_new=10**6)), each_token=True)
        await job.next_event()
        assert made.processes[0].count() == (1, 0)
        made.cancel(job)
        async with asyncio.timeout(20):
            while made.processes[0].count()[0]:
                await asyncio.sleep(0.01)

    run(lambda: Slow(None, 0.001), work)


def test_a_job_that_is_dropped_frees_its_place():
    async def work(made, side):
        long = made.decode(Job(inputs=(1,), rules=Rules(max_new=10**9)), each_token=True)
        await long.next_event()
        made.cancel(long)
        await made.decode(JOB).next_event()
        made.measure()
        return side.scheduler.jobs, made.front.metrics.text()

    (left, text), _ = run(lambda: Slow(None, 0), work)
    assert left == {}
    assert 'clearhead_sequences_running{model="it"} 0' in text
    assert "clearhead_batch_rows_count" in text


class Failing(Slow):
    """Refuses sources that begin with 0, and breaks where one begins with 9."""

    def add(self, job):
        if job.inputs[0] == 0:
            raise OptionError("0 is not read")
        return super().add(job)

    def step(self):
        if any(job.inputs[0] == 9 for job, _ in self.jobs.values()):
            raise MemoryError("a text of a user")
        return super().step()


def test_what_fails_is_told_to_those_it_concerns_and_the_next_job_is_done():
    async def work(made, side):
        with pytest.raises(ApiError, match="0 is not read") as refused:
            await made.decode(Job(inputs=(0,), rules=JOB.rules)).next_event()
        with pytest.raises(ApiError, match="not enough memory") as broken:
            await made.decode(Job(inputs=(9,), rules=JOB.rules)).next_event()
        event = await made.decode(JOB).next_event()
        return refused.value.status, broken.value.status, broken.value.retry_after, event.hypotheses[0].tokens

    found, [line] = run(lambda: Failing(None, 0), work)
    assert found == (400, 503, 5, (5, 5, 5))
    assert (line["event"], line["error"], line["lost"]) == ("failure", "MemoryError", 1)
    assert "user" not in str(line)


def test_a_job_goes_to_the_process_with_the_fewest_rows():
    async def work():
        made = Worker("it", lambda: Slow(None, 0), Front(limits=Limits(), logs=Logs()))
        pairs = [socket.socketpair() for _ in range(2)]
        made.processes = [ModelProcess("it", made.front, ours, 0) for ours, _ in pairs]
        loads, jobs = [], []
        for method in (Beam(width=3), Greedy(), Greedy(), Greedy(), Beam(width=2)):
            jobs.append(made.decode(Job(inputs=(1,), rules=JOB.rules, method=method)))
            loads.append([process.load for process in made.processes])
        for job in (jobs[0], jobs[1], jobs[0]):
            made.cancel(job)
        loads.append([process.load for process in made.processes])
        for one in pairs:
            one[0].close()
            one[1].close()
        return loads

    assert run_apart(work()) == [[3, 0], [3, 1], [3, 2], [3, 3], [5, 3], [2, 2]]


def test_a_gpu_is_not_forked():
    assert not can_fork(torch.device("cuda"))


@pytest.fixture
def served(api_runs):
    """`clearhead serve` in a process of its own, with two for each model; and what asks it."""
    script = f"from clearhead.cli import main; main(['serve', {str(api_runs['translator'].folder.path)!r}, "
    script += f"{str(api_runs['stretch'].folder.path)!r}, '--name', 'words', '--name', 'text', '--port', '0', "
    script += "'--log-format', 'json', '--replicas', '2'])"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CLEARHEAD_TOKEN": TOKEN}
    with (
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as process,
        contextlib.ExitStack() as stack,
    ):
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        assert json.loads(process.stderr.readline())["event"] == "ready"

        def send(path, **asked):
            connection = stack.enter_context(
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300))
            )
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
            connection.request("POST" if asked else "GET", path, json.dumps(asked), headers)
            return stack.enter_context(contextlib.closing(connection.getresponse()))

        try:
            yield process, send
        finally:
            process.kill()


def children_of(process):
    """The models' processes, in the order of the runs."""
    return [int(one) for one in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.slow
def test_killed_while_it_serves_it_is_told_and_the_server_ends(served, api_runs):
    process, send = served
    texts = ["eins zwei", "drei", "vier fünf sechs"]
    found = json.loads(send("/v1/translate", model="words", input=texts, beam=3).read())
    expected = [one.text for [one] in api_runs["translator"].scored_translations(texts, beam=3)]
    assert [one["text"] for one in found["data"]] == expected
    first, second, third, fourth = children_of(process)
    assert 'clearhead_model_cpu_seconds_total{model="words"}' in send("/metrics").read().decode()
    reply = send("/v1/completions", model="text", prompt="the", max_tokens=4000, temperature=0, stream=True)
    assert reply.readline()[:6] == b"data: "
    os.kill(third, signal.SIGKILL)
    assert b'"code": "model_lost"' in reply.read()
    eventually(lambda: process.poll() is not None)
    assert process.returncode == 1
    lines = process.stderr.read().splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    lost = next(one for one in events if one["event"] == "model_lost")
    assert (lost["model"], lost["lost"], lost["status"]) == ("text", 1, -signal.SIGKILL)
    assert any("the process of the model text ended" in line for line in lines if not line.startswith("{"))
    eventually(lambda: not any(Path(f"/proc/{one}").exists() for one in (first, second, fourth)))


@pytest.mark.slow
def test_a_server_that_is_killed_takes_its_models_along(served):
    process, send = served
    assert send("/v1/translate", model="words", input="eins").status == 200
    models = children_of(process)
    assert len(models) == 4
    for one in models:
        os.kill(one, signal.SIGTERM)  # as systemd sends it to all: the server alone decides
    assert send("/v1/translate", model="words", input="eins").status == 200
    process.kill()
    process.wait(60)
    eventually(lambda: not any(Path(f"/proc/{one}").exists() for one in models))


RULES = Rules(
    max_new=9,
    min_new=2,
    end=(2, 3),
    no_repeat=4,
    repetition_penalty=1.1,
    never=(0, 7),
    logit_bias=((3, -1.5), (4, 2.0)),
)


@pytest.mark.parametrize(
    "job",
    [
        Job(inputs=(1,), rules=Rules(max_new=3)),
        Job(inputs=(), rules=RULES, method=Greedy(), prefix=(), candidates=5),
        Job(inputs=(1, 2), rules=RULES, method=Beam(width=4, length_penalty=0.6, n_best=3, stop="early"), prefix=(1,)),
        Job(inputs=(1, 2), rules=RULES, method=Sample(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1, seeds=2**63)),
        Job(inputs=(1, 2), rules=RULES, method=Sample(seeds=(4,)), begun=(7, 8)),
    ],
)
def test_a_job_comes_out_as_it_went_in(job):
    assert Frames().take(pack({"job": job})) == [{"job": job}]


def test_a_grammar_comes_out_without_its_tokens():
    pytest.importorskip("llguidance")
    grammar = Grammar("regex", "ü+", TokenBytes(lambda: [b"a"]))
    job = Job(inputs=(1,), rules=Rules(max_new=3, grammar=grammar))
    [frame] = Frames().take(pack({"job": job}))
    found = frame["job"]
    assert found == job
    assert found.rules.grammar is not None
    assert found.rules.grammar.tokens is None


def test_numbers_keep_every_bit():
    values = (-0.1, -1 / 3, -5e-324, -1.7976931348623157e308, float("-inf"))
    one = Hypothesis(
        tokens=(3, 1, 4, 1, 5), log_probs=values, score=math.pi, ended=True, candidates=(((3, -0.1), (9, -0.2)), ())
    )
    assert Frames().take(pack({"it": one})) == [{"it": one}]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_frames_are_whole_however_the_bytes_are_cut(size):
    told = [{"n": n, "text": "ü" * n} for n in range(20)]
    data, frames = b"".join(map(pack, told)), Frames()
    found = [frame for i in range(0, len(data), size) for frame in frames.take(data[i : i + size])]
    assert found == told
    assert not frames.buffer
