"""The real `openai` client and `curl` against a real server: text and chat as offline, whole and streamed."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import openai
import pytest

import clearhead as ch
from clearhead.decoding import Greedy, Sample, TokenBytes
from clearhead.decoding.grammar import json_grammar
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.scheduler import Event, Finished, Scheduler
from clearhead.serve.api.completions import read_calls
from clearhead.text.templates import ChatTemplate
from clearhead.training.tasks.answering import continued
from tests.serve.api_serving import serving

PROMPTS = ["the cat", "", "the dog eats the"]
TALK = [{"role": "system", "content": "the cat eats."}, {"role": "user", "content": "and the dog?"}]


@pytest.fixture(scope="module")
def client(api):
    with openai.OpenAI(base_url=f"{api.server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_greedy_text_is_the_offline_one(client, api_runs):
    found = client.completions.create(model="documents", prompt=PROMPTS, temperature=0, max_tokens=20)
    assert [one.text for one in found.choices] == api_runs["documents"].generate(PROMPTS, max_new=20, method=Greedy())
    assert [one.index for one in found.choices] == [0, 1, 2]
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.object == "text_completion"


def test_sampled_text_is_the_offline_one_of_the_same_seed_past_the_context_too(client, api_runs):
    """80 tokens of a context of 32: the model goes on from the last half of it."""
    how = {"temperature": 0.9, "top_p": 0.95, "seed": 7, "max_tokens": 80, "n": 3}
    found = client.completions.create(model="stretch", prompt="the cat", **how)
    method = Sample(temperature=0.9, top_p=0.95, seeds=7)
    assert [one.text for one in found.choices] == api_runs["stretch"].generate(
        ["the cat"] * 3, max_new=80, method=method
    )
    assert {one.finish_reason for one in found.choices} == {"length"}


@pytest.mark.slow
def test_a_stream_is_the_whole_in_pieces_and_ends_with_its_usage(client):
    asked = {"model": "stretch", "prompt": "größ", "seed": 3, "max_tokens": 60, "n": 2}
    whole = client.completions.create(**asked)
    texts, finished, usage = ["", ""], {}, None
    for event in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = event.usage or usage
        for choice in event.choices:
            texts[choice.index] += choice.text
            finished[choice.index] = choice.finish_reason
    assert texts == [one.text for one in whole.choices]
    assert finished == {0: "length", 1: "length"}
    assert usage == whole.usage


@pytest.mark.parametrize("stop", ["eats", ["e p", "er\nt"], ["zzz"]])
@pytest.mark.slow
def test_stop_strings_cut_exactly_whole_and_streamed(client, stop):
    """Tokens are bytes here, so that every stop string lies across their borders."""
    asked = {"model": "stretch", "prompt": "the cat", "temperature": 0, "max_tokens": 60}
    free = client.completions.create(**asked).choices[0].text
    strings = [stop] if isinstance(stop, str) else stop
    cut = min((free.find(one) for one in strings if one in free), default=len(free))
    found = client.completions.create(**asked, stop=stop).choices[0]
    pieces = [event.choices[0].text for event in client.completions.create(**asked, stop=stop, stream=True)]
    assert found.text == "".join(pieces) == free[:cut]
    assert found.finish_reason == ("stop" if cut < len(free) else "length")


def test_log_probabilities_are_those_of_the_model(client, api_runs):
    run = api_runs["documents"]
    found = client.completions.create(model="documents", prompt="the cat", temperature=0, max_tokens=20, logprobs=3)
    told = found.choices[0].logprobs
    [offline] = run.scored_texts(["the cat"], max_new=20, method=Greedy())
    assert sum(told.token_logprobs) == pytest.approx(offline.score, abs=1e-4)
    assert "".join(told.tokens[:-1]) == found.choices[0].text
    assert all(
        len(row) == 3 and max(row.values()) == value
        for row, value in zip(told.top_logprobs, told.token_logprobs, strict=True)
    )
    assert [
        found.choices[0].text[at:].startswith(token) for at, token in zip(told.text_offset, told.tokens, strict=True)
    ][:-1]


def test_the_best_of_several_come_first(client):
    every = client.completions.create(model="documents", prompt="the", seed=1, n=6, max_tokens=8, logprobs=0)
    best = client.completions.create(model="documents", prompt="the", seed=1, n=2, best_of=6, max_tokens=8, logprobs=0)

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    assert [mean(one) for one in best.choices] == pytest.approx(sorted(map(mean, every.choices), reverse=True)[:2])


def test_ids_are_prompts_too_and_a_prompt_is_echoed(client, api_runs):
    run = api_runs["documents"]
    ids = run.task.trace_inputs("the cat").ids["decoder"]  # as they are: what stands before a text is among them
    assert ids != run.tokenizer.encode("the cat")
    asked = {"model": "documents", "temperature": 0, "max_tokens": 8}
    by_ids = client.completions.create(**asked, prompt=ids)
    echoed = client.completions.create(**asked, prompt="the cat", echo=True)
    assert f"the cat{by_ids.choices[0].text}" == echoed.choices[0].text
    assert by_ids.usage.prompt_tokens == len(ids)
    streamed = client.completions.create(**asked, prompt="the cat", echo=True, stream=True)
    assert "".join(event.choices[0].text for event in streamed) == echoed.choices[0].text


def test_rules_beyond_openai_s_are_followed(client, api_runs):
    rules = {"no_repeat_ngram_size": 2, "min_tokens": 12, "repetition_penalty": 1.3}
    rules |= {"presence_penalty": 0.3, "frequency_penalty": 0.2, "logit_bias": {"5": 0.5}}
    asked = {"model": "documents", "prompt": "the", "temperature": 0, "max_tokens": 20}
    run = api_runs["documents"]
    frame = run.task.frame()
    how = ch.Rules(max_new=20, min_new=12, no_repeat=2, repetition_penalty=1.3, end=frame.ends, never=frame.never)
    how = replace(how, presence_penalty=0.3, frequency_penalty=0.2, logit_bias=((5, 0.5),))
    row = run.tokenizer.encode("the")
    [[offline]] = ch.generate(run.model, [[*frame.before, *row]], Greedy(), rules=how)
    found = client.completions.create(**asked, extra_body=rules)
    assert found.choices[0].text == continued(run.tokenizer, row, offline.tokens)
    assert found.usage.completion_tokens == len(offline.tokens) >= 12


def test_penalties_and_a_bias_are_followed_past_the_context_too(client, api_runs):
    """A context of 32: the output is several jobs, and what the first wrote counts in the last."""
    run = api_runs["stretch"]
    [often] = run.tokenizer.encode("e")
    asked = {"model": "stretch", "prompt": "the cat", "temperature": 0, "max_tokens": 80}
    plain = client.completions.create(**asked).choices[0].text
    free = client.completions.create(**asked, frequency_penalty=0.8, presence_penalty=0.5).choices[0].text
    assert free != plain
    assert max(map(free.count, set(free))) < max(map(plain.count, set(plain)))
    assert "e" in plain
    assert "e" not in client.completions.create(**asked, logit_bias={str(often): -100}).choices[0].text


def test_an_answer_is_json_of_the_schema_that_was_asked_for(client, api_runs):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"cat": {"type": "boolean"}}, "required": ["cat"]}
    schema |= {"additionalProperties": False}
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "pets", "schema": schema}}}
    offline = api_runs["stretch"]
    tokens = TokenBytes(offline.tokenizer.token_bytes)
    for method, how in ((Greedy(), {"temperature": 0}), (Sample(seeds=4), {"seed": 4})):
        found = client.completions.create(model="stretch", prompt="the", max_tokens=100, extra_body=asked, **how)
        choice = found.choices[0]
        assert isinstance(json.loads(choice.text)["cat"], bool)
        assert choice.finish_reason == "stop"
        frame = offline.task.frame()
        rules = ch.Rules(max_new=16, end=frame.ends, never=frame.never, grammar=json_grammar(schema, tokens))
        row = [*frame.before, *offline.tokenizer.encode("the")]
        [alone] = ch.generate(offline.model, row, method, rules=rules)
        assert choice.text.startswith(offline.tokenizer.decode(alone.tokens))
    streamed = client.completions.create(
        model="stretch", prompt="the", max_tokens=30, stream=True, extra_body={"regex": "[0-9]{3}(cat)?"}
    )
    assert re.fullmatch("[0-9]{3}(cat)?", "".join(event.choices[0].text for event in streamed))
    found = client.chat.completions.create(
        model="talker", messages=TALK, response_format={"type": "json_object"}, max_completion_tokens=12, temperature=0
    )
    assert found.choices[0].message.content.startswith("{")


def test_a_chat_is_answered_as_offline_whole_and_streamed(client, api_runs):
    asked = {"model": "talker", "messages": TALK, "temperature": 0, "max_completion_tokens": 12}
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    choice = found.choices[0]
    assert choice.message.content == api_runs["talker"].chat(TALK, max_new=12, method=Greedy())
    assert (choice.message.role, found.object) == ("assistant", "chat.completion")
    tokens = choice.logprobs.content
    assert "".join(bytes(one.bytes).decode() for one in tokens if one.token != "</s>") == choice.message.content
    assert all(one.top_logprobs[0].logprob == pytest.approx(one.logprob) for one in tokens)
    events = list(client.chat.completions.create(**asked, stream=True))
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events) == choice.message.content
    assert events[-1].choices[0].finish_reason == choice.finish_reason


def test_models_are_listed_and_shown(client):
    assert [one.id for one in client.models.list()][:2] == ["translator", "documents"]
    shown = client.models.retrieve("talker").model_dump()
    assert (shown["task"], shown["step"]) == ("generate", 60)
    assert "/v1/chat/completions" in shown["routes"]
    with pytest.raises(openai.NotFoundError, match="there is no model 'nobody'"):
        client.models.retrieve("nobody")


def test_vectors_come_as_the_client_asks(client, api_runs):
    found = client.embeddings.create(model="filler", input=["the cat", "the dog"])
    expected = api_runs["filler"].embed(["the cat", "the dog"])
    assert [one.embedding for one in found.data] == [pytest.approx(row, abs=1e-5) for row in expected.tolist()]


@pytest.mark.parametrize(
    ("asked", "status", "param"),
    [
        ({"prompt": 3}, 400, "prompt"),
        ({"prompt": [[1, 10_000]]}, 400, "prompt"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 2, "best_of": 1}, 400, "best_of"),
        ({"best_of": 2, "stream": True}, 400, "best_of"),
        ({"stop": [""]}, 400, "stop"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"echo": True, "logprobs": 1}, 400, "echo"),
        ({"presence_penalty": 2.5}, 400, "presence_penalty"),
        ({"frequency_penalty": "1"}, 400, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, 400, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, 400, "logit_bias"),
        ({"logit_bias": [5]}, 400, "logit_bias"),
        ({"suffix": "x"}, 400, "suffix"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"attention": True, "stream": True}, 400, "attention"),
        ({"grammar": "x"}, 400, "grammar"),
        ({"min_tokens": 9, "max_tokens": 8}, 400, "min_tokens"),
        ({"prompt": "cat " * 40}, 413, "prompt"),
        ({"prompt": ["cat"] * 10, "n": 100}, 413, "prompt"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(api, asked, status, param):
    assert api.refused("/v1/completions", **{"model": "documents", "prompt": "the", **asked})[:2] == (status, param)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": [1]}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}},
            "response_format",
        ),
        ({"response_format": {"type": "text"}, "regex": "a"}, "regex"),
        ({"regex": "(a"}, "regex"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"model": "documents"}, "model"),
    ],
)
def test_a_chat_that_cannot_be_held_is_refused(api, asked, param):
    assert api.refused("/v1/chat/completions", **{"model": "talker", "messages": TALK, **asked})[:2] == (400, param)


def test_parts_of_text_and_a_neutral_option_are_taken(api):
    parts = [{"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]}]
    neutral = {"tools": [], "response_format": {"type": "text"}, "presence_penalty": 0, "user": "me"}
    assert api.post("/v1/chat/completions", model="talker", messages=parts, **neutral)[0] == 200


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_completes_and_streams(api, api_runs):
    asked = {"model": "documents", "prompt": "the cat", "temperature": 0, "max_tokens": 8}

    def curl(**options):
        command = ["curl", "-sN", f"{api.server.address}/v1/completions", "-H", "Content-Type: application/json"]
        return subprocess.run(
            [*command, "-d", json.dumps({**asked, **options})], capture_output=True, text=True, check=True
        ).stdout

    [text] = api_runs["documents"].generate(["the cat"], max_new=8, method=ch.Greedy())
    assert json.loads(curl())["choices"][0]["text"] == text
    lines = [line.removeprefix("data: ") for line in curl(stream=True).splitlines() if line]
    assert lines.pop() == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == text


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
