"""Tools: a template is given what a request offers, and what the model wrote is read as calls."""

import json

import pytest

from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.scheduler import Event, Finished, Scheduler
from clearhead.serve.api.tools import read_calls
from clearhead.text.templates import ChatTemplate
from tests.serve.api_serving import serving

OFFER = "{% if tools %}<tool_call> {{ tools[0].function.name }} {% endif %}"
TEMPLATE = OFFER + "{% for m in messages %}{{ m.content }} {% endfor %}"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
TALK = [{"role": "user", "content": "the cat"}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


class Saying(Scheduler):
    """Answers every job with the same tokens, and keeps what it was asked."""

    def __init__(self):
        self.tokens, self.asked, self.waits = (), [], []

    def add(self, job):
        self.asked.append(job.inputs)
        self.waits.append(len(self.asked))
        return len(self.asked)

    def cancel(self, ticket):
        pass

    def step(self) -> list[Event]:
        hypothesis = Hypothesis(tokens=self.tokens, log_probs=(0.0,) * len(self.tokens), score=0.0, ended=True)
        done, self.waits = self.waits, []
        return [Finished(ticket, [hypothesis]) for ticket in done]

    @property
    def running(self):
        return 0

    @property
    def waiting(self):
        return len(self.waits)


@pytest.fixture
def talking(api_runs, monkeypatch):
    """A client of a run whose model always writes the same, with what it will write and what it was asked."""
    run, scheduler = api_runs["documents"], Saying()
    monkeypatch.setattr(type(run.folder), "chat", lambda self: ChatTemplate(TEMPLATE))
    with serving([run], names=["talker"], scheduler=lambda model, task: scheduler) as client:
        yield client, run, scheduler


def test_a_call_is_read_from_what_the_model_wrote(talking):
    client, run, scheduler = talking
    scheduler.tokens = tuple(run.tokenizer.encode(f"the {CALL}"))
    [choice] = client.answer("/v1/chat/completions", messages=TALK, tools=TOOLS)["choices"]
    message = choice["message"]
    [call] = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})
    assert (choice["finish_reason"], message["content"]) == ("tool_calls", "the")
    silent = {**message, "content": None}
    reply = [*TALK, silent, {"role": "tool", "content": "2", "tool_call_id": call["id"]}]
    [plain] = client.answer("/v1/chat/completions", messages=reply)["choices"]
    assert "tool_calls" not in plain["message"]
    assert plain["message"]["content"].endswith(CALL)  # nothing was offered
    offered, answered = (run.tokenizer.decode(ids) for ids in scheduler.asked)
    assert offered.startswith("<tool_call> add the cat")
    assert answered.startswith("the cat  2")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": "add"}, "tools"),
        ({"tools": TOOLS * 129}, "tools"),
        ({"tools": TOOLS, "stream": True}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_cannot_be_offered_is_refused(talking, asked, param):
    client, _, _ = talking
    assert client.refused("/v1/chat/completions", messages=TALK, **asked)[:2] == (400, param)


def test_a_template_without_tools_refuses_them(api):
    status, param, message = api.refused("/v1/chat/completions", model="talker", messages=TALK, tools=TOOLS)
    assert (status, param) == (400, "tools")
    assert "does not offer tools" in message
    api.answer("/v1/chat/completions", model="talker", messages=TALK, tools=TOOLS, tool_choice="none", max_tokens=2)


def test_what_is_no_call_stays_text():
    for text in ("<tool_call>{}</tool_call>", '<tool_call>{"name": </tool_call>', "<tool_call>", '{"name": "add"}'):
        assert read_calls(text, "x") == (text, [])
    text, calls = read_calls(f"{CALL} and {CALL}", "x")
    assert (text, [call["id"] for call in calls]) == (" and ", ["call_x_0", "call_x_1"])
