"""One budget for every question: what takes more is refused before it is computed, and O(block) memory for the rest."""

import contextlib
import gc
import http.client
import json
import socket
import threading
import weakref

import pytest
import torch

from clearhead.attention import reference
from clearhead.experiments.tracing import trace
from clearhead.model.presets import Size
from clearhead.serve.budget import AnswerBudget, Cost, TooMuchError
from clearhead.serve.costs import ModelCosts
from clearhead.serve.edit_json import StepEdit
from clearhead.serve.explorer import Explorer
from clearhead.serve.question_table import QUESTIONS
from clearhead.serve.questions.question import TraceQuestion
from clearhead.serve.questions.trace import AskTrace
from clearhead.serve.questions.weights import AskColumn
from clearhead.serve.traced import Traced
from clearhead.tracing import site as site_module
from clearhead.tracing.head_metrics import compare_answers, lens
from clearhead.tracing.site import Head
from clearhead.tracing.trace import trace_model
from clearhead.training.tasks.learning import decoder
from tests.serve.asking import ask
from tests.serve.conftest import serving

SITE = {"site": "decoder.0.attention", "head": "0"}
ASKED = {
    "tile": {**SITE, "step": "weight"},
    "thumbs": SITE,
    "row": {**SITE, "query": "0"},
    "column": {**SITE, "key": "0"},
    "cell": {**SITE, "query": "0", "key": "0"},
    "vectors": {**SITE, "role": "key"},
    "readings": {},
    "lens": {},
    "attribution": {},
    "surprise": {},
    "effects": SITE,
    "circuit": {"against": "eins drei", "method": "eap"},
    "edge": {"against": "eins drei", "edge": "encoder.embedding.token -> encoder.0.attention.value.0"},
    "stream": {"side": "decoder"},
    "spaces": {**SITE, "places": "0,1"},
    "sequence": {**SITE, "query": "0"},
    "box": {"box": "decoder.output", "token": "0"},
    "terms": {"name": "decoder.0.feed_forward.out", "unit": "0"},
    "neurons": {"at": "decoder.0.feed_forward", "token": "0"},
}
"""A question of every kind that the run of translations answers."""
WITHOUT = {
    "trace": {"source": "eins", "target": "1"},
    "context": {"texts": ["eins zwei"], "word": "eins"},
    "decode": {"source": "eins"},
    "positions": {},
    "sample": {"source": "eins", "mode": "greedy"},
    "neighbours": {"table": "encoder.embedding", "token": 5},
    "tokenize": {"text": "eins"},
    "exercises": {},
    "slip": {"name": "slip-1"},
    "mystery": {"name": "mystery-1"},
    "grade": {"name": "slip-1", "at": "decoder.0.attention", "step": "score", "formula": "query @ key.mT"},
}
"""And those that are asked of the run."""


@pytest.mark.parametrize("question", [name for name, kind in QUESTIONS.items() if issubclass(kind, TraceQuestion)])
def test_every_question_about_a_trace_is_held_to_the_budget(translator, question):
    made = trace(translator, "eins zwei", "12")
    wanted = AskTrace(source="eins zwei", target="12", step=translator.step)

    def answer(budget):
        explorer = Explorer(translator)
        explorer.traces.get_or_make(wanted.id, lambda: Traced(wanted, translator, made, budget))
        return ask(explorer, question, ASKED[question], wanted.id)

    assert answer(AnswerBudget()) is not None
    with pytest.raises(TooMuchError, match=r"takes [\d,]+ .* (are|MB are) the most for one answer; "):
        answer(AnswerBudget(cells=0, memory=0))


@pytest.mark.parametrize("question", WITHOUT)
def test_every_question_about_a_run_is_held_to_the_budget(translator, question):
    assert ask(Explorer(translator), question, WITHOUT[question])
    with pytest.raises(TooMuchError, match=r"takes [\d,]+ .* the most for one answer; "):
        ask(Explorer(translator, AnswerBudget(cells=0, memory=0)), question, WITHOUT[question])


def test_what_takes_too_much_is_413_with_a_sentence_and_not_computed(translator, tmp_path, monkeypatch):
    with serving(translator, tmp_path / "static", AnswerBudget(cells=300)) as server, contextlib.ExitStack() as stack:
        connection = stack.enter_context(
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.place.port, timeout=300))
        )
        name = send(connection, server, "POST", "api/trace", {"source": "eins zwei drei", "target": "1" * 13})[1]["id"]
        monkeypatch.setattr(Head, "rows", None)
        column = f"api/trace/{name}/column?site=decoder.0.attention&key=0&head="
        status, found = send(connection, server, "GET", f"{column}mean")
    assert status == 413
    assert found["error"] == (
        "a column of all 2 heads of decoder.0.attention takes 392 attention weights, and 300 are the most for one "
        "answer; ask for one head, for rows, or for a tile of it"
    )


def send(connection, server, method, path, body=None):
    sent = None if body is None else json.dumps(body)
    connection.request(method, f"/{server.place.token}/{path}", sent, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def test_the_longest_text_follows_from_the_budget(documents):
    text, budget = "the cat eats the plum", AnswerBudget(cells=100)
    costs = ModelCosts(documents.model)
    assert budget.most(lambda n: costs.trace({"decoder": n}), documents.task.context) == 10  # 10 x 10 for one head
    with pytest.raises(TooMuchError, match=r"a trace of 16 decoder tokens takes 256 .* the longest has 10 tokens here"):
        ask(Explorer(documents, budget), "trace", {"source": text * 3})
    assert ask(Explorer(documents, budget), "trace", {"source": text})["sides"]["decoder"]["ids"]


def test_an_edit_inside_an_attention_counts_what_the_reference_holds(documents):
    costs, n = ModelCosts(documents.model), {"decoder": 3000}
    edit: StepEdit = {"at": "decoder.0.attention", "step": "score", "to": 1.0, "head": None, "query": 0, "key": 0}
    changes = AskTrace(source="", target=None, edits=[edit], step=0).changes
    assert costs.trace(n, changes).memory - costs.trace(n).memory >= 2 * 3000 * 3000 * 4 * 5
    assert costs.trace(n, changes * 100).cells > 40 * costs.trace(n, changes).cells


def test_a_word_that_stands_everywhere_is_refused_before_it_is_compared(translator):
    texts = ["eins " * 6] * 20
    with pytest.raises(TooMuchError, match=r"comparing 'eins' in 120 places takes .* take fewer or shorter texts"):
        ask(Explorer(translator, AnswerBudget(memory=2_500_000)), "context", {"texts": texts, "word": "eins"})


def test_kept_traces_stay_within_the_budget(translator):
    one = AskTrace(source="eins", target="1", step=translator.step).traced(Explorer(translator)).nbytes
    explorer = Explorer(translator, AnswerBudget(memory=5 * one // 2))
    for text in ("eins", "zwei", "drei"):
        ask(explorer, "trace", {"source": text, "target": "1"})
    assert len(explorer.traces.values) == 2


@pytest.fixture(scope="module")
def long():
    """A head of a text of 600 tokens, in an untrained model."""
    model = decoder(Size(1, 32, 2, 2, 64), 1024, 0.0).build().eval()
    return trace_model(model, torch.randint(16, (1, 600))).sites["decoder.0.attention"].head[0]


class Blocks:
    """Counts blocks of weights that are alive at once, by their storage: a view keeps all of it."""

    def __init__(self, monkeypatch, cells):
        self.alive, self.most, self.made = 0, 0, 0
        monkeypatch.setattr(site_module, "CELLS", cells)
        weigh = reference.weigh

        def counted(*args, **kwargs):
            found = weigh(*args, **kwargs)
            self.made += 1
            self.alive += 1
            gc.collect(0)
            self.most = max(self.most, self.alive)
            weakref.finalize(found.weight.untyped_storage(), self.gone)
            return found

        monkeypatch.setattr(reference, "weigh", counted)

    def gone(self):
        self.alive -= 1


@pytest.mark.parametrize(
    "read",
    [
        lambda head: head.column(3),
        lambda head: head.tile("weight", 0, 0, 0),
        lambda head: head.tile("masked", 2, 0, 0),
        lambda head: head.tile("weight", 12, 0, 0),
    ],
    ids=["column", "tile", "coarse tile", "coarsest tile"],
)
def test_reading_a_head_holds_a_block_or_two_at_a_time(long, monkeypatch, read):
    blocks = Blocks(monkeypatch, 6000)
    found = read(long)
    assert blocks.made >= 25
    assert blocks.most <= 3
    assert found.isfinite().any()


def test_a_column_that_is_asked_for_holds_a_block_or_two_at_a_time(documents, monkeypatch):
    text = "the cat eats the plum, the dog eats the cat, the cow eats the apple, größer"
    made = trace(documents, text)
    wanted = AskTrace(source=text, target=None, step=documents.step)
    blocks = Blocks(monkeypatch, 1)
    found = AskColumn(trace=wanted.id, site="decoder.0.attention", head=0, key=0).answer_of(
        Traced(wanted, documents, made)
    )
    assert blocks.made == len(found["weight"]) >= 16
    assert blocks.most <= 3


@pytest.mark.parametrize("cells", [2400, 7000, 1 << 20])
@pytest.mark.parametrize("level", [0, 1, 3, 7, 12])
def test_a_tile_is_the_same_whatever_the_blocks(long, monkeypatch, level, cells):
    size = 1 << level
    whole = torch.nn.functional.pad(long.weight, (0, -600 % size, 0, -600 % size), value=-1.0)
    largest = whole.unflatten(0, (-1, size)).amax(1).unflatten(1, (-1, size)).amax(2)
    monkeypatch.setattr(site_module, "CELLS", cells)
    torch.testing.assert_close(long.tile("weight", level, 0, 0), largest[:256, :256])
    torch.testing.assert_close(long.column(3), long.weight[:, 3])


def test_a_block_of_a_tile_never_has_more_cells_than_it_may(long, monkeypatch):
    """A square of the coarsest level is the whole matrix, which must not be made at once."""
    sizes, rows = [], Head.matrix_rows
    monkeypatch.setattr(site_module, "CELLS", 6000)
    monkeypatch.setattr(
        Head,
        "matrix_rows",
        lambda head, step, start, stop: sizes.append(stop - start) or rows(head, step, start, stop),
    )
    long.tile("weight", 12, 0, 0)
    assert max(sizes) == 10


def test_the_coarsest_level_takes_no_more_memory_than_the_matrix_is_wide(long, monkeypatch):
    shapes, pad = [], torch.nn.functional.pad
    monkeypatch.setattr(
        torch.nn.functional, "pad", lambda x, *args, **how: shapes.append(pad(x, *args, **how)) or shapes[-1]
    )
    assert long.tile("weight", 23, 0, 0).shape == (1, 1)
    assert max(one.shape[1] for one in shapes) <= 600
    assert max(one.shape[0] for one in shapes) <= 600


def test_answers_are_compared_a_few_rows_at_a_time(monkeypatch):
    one, other = torch.randn(2, 1, 700, 11)
    before, after = (torch.log_softmax(rows[0].double(), -1) for rows in (one, other))
    best = before.argmax(-1, keepdim=True)
    change = (after.gather(-1, best) - before.gather(-1, best)).mean().item()
    moved = (before.exp() * (before - after)).sum(-1).mean().item()
    assert compare_answers(one, other) == pytest.approx((change, moved), rel=1e-12)


def test_the_lens_makes_few_logits_at_a_time(documents, monkeypatch):
    made = trace(documents, "the cat eats the plum")
    whole = lens(made, documents.model)
    monkeypatch.setattr("clearhead.tracing.head_metrics.ROWS", 2)
    sizes, output = [], documents.model.output
    handle = output.register_forward_hook(lambda _, given, logits: sizes.append(logits.shape[1]))
    again = lens(made, documents.model)
    handle.remove()
    assert max(sizes) == 2
    assert [[[one.id for one in row] for row in layer.rows] for layer in again] == [
        [[one.id for one in row] for row in layer.rows] for layer in whole
    ]


def test_work_stops_within_a_block_when_its_reader_leaves(documents, client_of, monkeypatch):
    client, begun, left, rows = client_of(documents), threading.Event(), threading.Event(), []
    _, meta = client.post(
        "api/trace", {"source": "the cat eats the plum, the dog eats the cat, the cow eats the apple, größer"}
    )
    n = len(meta["sides"]["decoder"]["ids"])
    made = Head.rows
    monkeypatch.setattr(site_module, "CELLS", 1)

    def slow(head, start, stop):
        begun.set()
        assert left.wait(300)
        found = made(head, start, stop)
        rows.append(start)
        return found

    monkeypatch.setattr(Head, "rows", slow)
    path = f"/{client.place.token}/api/trace/{meta['id']}/column?site=decoder.0.attention&head=0&key=0"
    with socket.create_connection(("127.0.0.1", client.place.port)) as reader:
        reader.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost:{client.place.port}\r\n\r\n".encode())
        assert begun.wait(300)
    for _ in range(3):  # whoever is answered comes after the end of that connection
        assert client.get("api/health") == (200, {"ok": True})
    left.set()
    status, _ = client.get(f"api/trace/{meta['id']}/stream", side="decoder")  # which waits for its turn
    assert status == 200
    assert n >= 16
    assert len(rows) < n // 2


def test_a_forward_pass_stops_too(documents):
    from clearhead.tracing.recording import StoppedError, stopping_when

    with stopping_when(lambda: True), pytest.raises(StoppedError):
        trace(documents, "the cat eats")
    assert trace(documents, "the cat eats").sites


def test_costs_add_up():
    assert Cost(cells=1, memory=2) + Cost(cells=3) == Cost(cells=4, memory=2)
    with pytest.raises(TooMuchError) as raised:
        AnswerBudget(memory=10**9).check(Cost(memory=2 * 10**9), "it", "ask for less")
    assert str(raised.value) == ("it takes 2,000 MB of memory, and 1,000 MB are the most for one answer; ask for less")


def test_a_trace_holds_a_few_rows_of_logits_and_a_forward_pass_all(documents):
    costs = ModelCosts(documents.model)
    costs.logits = 50_000
    n = {"decoder": 4096}
    assert costs.forward(n).memory - costs.forward(n, logit_rows=512).memory == (4096 - 512) * 50_000 * 4
    assert costs.trace(n).memory < costs.forward(n).memory


@pytest.mark.parametrize(("pages", "memory"), [(0, 1e9), (1_000_000, 1.024e9), (2_000_000, 2.048e9), (10**9, 4e9)])
def test_the_memory_follows_the_machine(monkeypatch, pages, memory):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}[name])
    assert AnswerBudget().memory == memory
