"""`generate`, `stream` and `score`: what they give, what they leave behind, and how many rows they read."""

import gc
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from clearhead.decoding import Beam, Greedy, Hypothesis, Rules, Sample, generate, score, session, stream
from clearhead.decoding.session import Prefill, Session
from clearhead.model import NextToken, Output, presets
from tests.decoding.laws import case_of
from tests.decoding.models import PLAIN, VOCABULARY, build, models, on_axes
from tests.decoding.plain import Case, apart
from tests.rounding import same_but_rounding

METHODS = [Greedy(), Sample(temperature=2.0), Beam(width=3, n_best=3)]
methods = pytest.mark.parametrize("method", METHODS, ids=["greedy", "sample", "beam"])
KINDS = ["decoder", "same cross"]


@pytest.fixture(params=KINDS)
def case(request):
    return case_of(build(on_axes(PLAIN | {"kind": request.param})))


@methods
def test_log_probs_sum_to_the_score(case, method):
    for hypotheses in case.generate(method, Rules(max_new=5, end=(2,))):
        for made in hypotheses:
            total = made.score * (len(made.tokens) if isinstance(method, Beam) else 1)
            assert len(made.log_probs) == len(made.tokens)
            assert max(made.log_probs) <= 0
            assert math.fsum(made.log_probs) == pytest.approx(total, abs=1e-12)


@methods
@pytest.mark.parametrize("count", [1, 4, VOCABULARY, 30])
@pytest.mark.pairs(1)
def test_candidates_are_the_likeliest_at_each_step(case, method, count):
    """So many of them, the likeliest first, each with its log-probability; the chosen one has the same there."""
    for row, hypotheses in enumerate(case.generate(method, Rules(max_new=4, end=(2,)), candidates=count)):
        for made in hypotheses:
            assert len(made.candidates) == len(made.tokens)
            table = case.log_probs(row, [list(made.tokens)])[0]
            for place, shown in enumerate(made.candidates):
                best = table[place].topk(min(count, VOCABULARY))
                assert [token for token, _ in shown] == best.indices.tolist()
                assert apart("candidates", [log_prob for _, log_prob in shown], best.values) == []
                listed = dict(shown)
                if made.tokens[place] in listed:
                    assert listed[made.tokens[place]] == pytest.approx(made.log_probs[place], abs=1e-12)


def test_candidates_change_nothing_else(case):
    for method in METHODS:
        plain, shown = (case.generate(method, Rules(max_new=4), candidates=count) for count in (0, 3))
        for mine, wanted in zip(shown, plain, strict=True):
            assert [made.tokens for made in mine] == [made.tokens for made in wanted]
            assert all(made.candidates == () for made in wanted)


def test_the_narrowest_beam_shows_the_candidates_of_greedy(case):
    """The same tokens, whatever the rules forbid."""
    rules = Rules(max_new=5, min_new=4, end=(1, 2, 5), no_repeat=2, repetition_penalty=1.2)
    greedy = case.generate(Greedy(), rules, candidates=4)
    for mine, wanted in zip(case.generate(Beam(width=1, length_penalty=0.0), rules, candidates=4), greedy, strict=True):
        assert mine[0].tokens == wanted[0].tokens
        for one, other in zip(mine[0].candidates, wanted[0].candidates, strict=True):
            assert [token for token, _ in one] == [token for token, _ in other]


@methods
def test_nothing_in_nothing_out(method):
    rules = Rules(max_new=3)
    for model, prefix in ((presets.gpt2("tiny", vocabulary=9).build(), None), (presets.tiny(9).build(), [[1]])):
        for inputs in ([], torch.zeros(0, 4, dtype=torch.long)):
            assert generate(model, inputs, method, rules=rules, prefix=prefix) == []
            assert score(model, inputs, [], prefix=prefix) == []
            if not isinstance(method, Beam):
                assert list(stream(model, inputs, method, rules=rules, prefix=prefix)) == []


def test_rows_may_be_a_tensor(case):
    rows = torch.tensor([[1, 2, 3], [4, 5, 6]])
    same = Case(case.model, rows.tolist(), case.sources and rows.tolist())
    as_given: Any = rows
    given = Case(case.model, as_given, case.sources and as_given)
    rules = Rules(max_new=3)
    found, wanted = (generate(case.model, rules=rules, **one.asked()) for one in (same, given))
    assert same_but_rounding(found, wanted)
    scored = score(case.model, outputs=rows, **given.asked())
    assert same_but_rounding(scored, score(case.model, outputs=rows.tolist(), **same.asked()))


class Read:
    """The shape of what the decoder reads, each time it reads."""

    def __init__(self, monkeypatch):
        self.shapes = []
        compute, read = Session.compute_step, Prefill.read_next

        def note_step(session):
            self.shapes.append((session.clock.rows, 1))
            return compute(session)

        def note_prompt(prefill):
            self.shapes.append(tuple(prefill.tokens.shape))
            return read(prefill)

        monkeypatch.setattr(Session, "compute_step", note_step)
        monkeypatch.setattr(Prefill, "read_next", note_prompt)


@pytest.mark.parametrize("method", METHODS[:2], ids=["greedy", "sample"])
def test_the_batch_shrinks_as_sentences_end(case, method, monkeypatch):
    """Each step reads one token of every sentence that has not ended, and the last token of none is read.

    The first reads the last tokens of the prompts, of which the others were read before.
    """
    shrunk = False
    for end in range(VOCABULARY):
        with monkeypatch.context() as patch:
            read = Read(patch)
            lengths = [len(made.tokens) for (made,) in case.generate(method, Rules(max_new=5, end=(end,)))]
        assert read.shapes[:2] == [(3, 4), (3, 1)]
        going_on = [sum(length > n for length in lengths) for n in range(1, 5)]
        assert read.shapes[2:] == [(rows, 1) for rows in going_on if rows]
        shrunk = shrunk or len({rows for rows, _ in read.shapes}) > 1
    assert shrunk


def test_a_stream_comes_as_it_is_chosen(case, monkeypatch):
    """Before the first token only the prompts were read; each later token took one more reading."""
    read = Read(monkeypatch)
    tokens = case.stream(Greedy(), Rules(max_new=4))
    assert read.shapes == []
    seen = [(next(tokens).sequence, len(read.shapes)) for _ in range(12)]
    assert seen == [(row, step) for step in (2, 3, 4, 5) for row in (0, 1, 2)]
    assert next(tokens, None) is None


def calls(case):
    """Everything that runs the model."""
    rules = Rules(max_new=3)
    for method in METHODS:
        yield lambda method=method: generate(case.model, method=method, rules=rules, **case.asked())
    yield lambda: list(stream(case.model, rules=rules, **case.asked()))
    yield lambda: score(case.model, outputs=[[1], [2, 3], [4]], **case.asked())


def test_every_module_goes_back_to_its_mode(case):
    for call in calls(case):
        for place, module in enumerate(case.model.modules()):
            module.training = place % 3 > 0
        before = [module.training for module in case.model.modules()]
        call()
        assert [module.training for module in case.model.modules()] == before
        assert torch.is_grad_enabled()


def test_modes_go_back_after_an_error(case, monkeypatch):
    case.model.train()
    monkeypatch.setattr(Session, "compute_step", lambda session: 1 / 0)
    for method in METHODS:
        with pytest.raises(ZeroDivisionError):
            generate(case.model, method=method, rules=Rules(max_new=3), **case.asked())
        assert all(module.training for module in case.model.modules())
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_there_is_no_dropout_while_decoding():
    model = presets.gpt2("tiny", vocabulary=12, dropout=0.5).build().double().train()
    once, twice = (generate(model, [[1, 2, 3]], rules=Rules(max_new=5)) for _ in range(2))
    assert once == twice
    assert same_but_rounding(once, generate(model.eval(), [[1, 2, 3]], rules=Rules(max_new=5)))


def tensors_there():
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


@pytest.mark.slow
def test_no_graph_is_kept(case):
    """No tensor that was made remembers what it was made of, and no gradient appears."""
    gc.collect()
    before = {id(tensor) for tensor in tensors_there()}
    kept = [call() for call in calls(case)]
    assert len(kept) == len(METHODS) + 2
    assert [tensor for tensor in tensors_there() if id(tensor) not in before and tensor.grad_fn is not None] == []
    assert all(parameter.grad is None for parameter in case.model.parameters())


def test_a_session_keeps_no_graph_while_it_decodes(case, monkeypatch):
    kept = []
    original = Session.compute_step

    def compute(session):
        logits = original(session)
        kept.extend([logits, *(tensor for cache in session.caches for tensor in cache.tensors())])
        return logits

    monkeypatch.setattr(Session, "compute_step", compute)
    for method in METHODS:
        case.generate(method, Rules(max_new=3))
    assert kept
    assert not any(tensor.requires_grad for tensor in kept)


@pytest.mark.parametrize("choices", models()[:25], ids=str)
def test_a_model_learns_after_it_has_written(choices):
    """Nothing that decoding leaves in the model stands in the way of a backward pass."""
    model = build(choices)
    case = case_of(model)
    generate(model, rules=Rules(max_new=3), **case.asked())
    target = torch.randint(VOCABULARY, (2, 6))
    logits = model(target) if case.sources is None else model(target, target)
    logits.square().mean().backward()
    grad = model.decoder.embedding.table.grad
    assert grad is not None
    assert grad.isfinite().all()
    assert grad.abs().max() > 0


def test_hypotheses_are_plain_values(case):
    """Ints, floats and bools: nothing that holds on to a tensor."""
    for method in METHODS:
        for hypotheses in case.generate(method, Rules(max_new=3, end=(2,)), candidates=2):
            for made in hypotheses:
                assert isinstance(made, Hypothesis)
                assert {type(token) for token in made.tokens} == {int}
                assert {type(log_prob) for log_prob in made.log_probs} == {float}
                assert type(made.score) is float
                assert type(made.ended) is bool
                assert {(type(token), type(log_prob)) for shown in made.candidates for token, log_prob in shown} == {
                    (int, float)
                }


def test_score_of_outputs_of_any_length(case):
    """Each alone has what it has in the batch."""
    outputs = [[1, 2, 3, 4, 5], [6], [7, 8]]
    for row, found in enumerate(case.score(outputs)):
        (alone,) = case.only([row]).score([outputs[row]])
        table = case.log_probs(row, [outputs[row]])[0]
        assert apart("alone", found.log_probs, alone.log_probs) == []
        assert apart("plain", found.log_probs, [table[place, token] for place, token in enumerate(outputs[row])]) == []
        assert found.total == pytest.approx(sum(found.log_probs))


def test_all_outputs_of_one_length_have_a_probability_of_one(case):
    one = Case(case.model, [case.prompts[0]] * VOCABULARY**2, case.sources and [case.sources[0]] * VOCABULARY**2)
    outputs = [[first, second] for first in range(VOCABULARY) for second in range(VOCABULARY)]
    assert math.fsum(math.exp(found.total) for found in one.score(outputs)) == pytest.approx(1)


def test_score_takes_a_long_prompt_beside_a_long_output():
    """Eight learned positions: neither text has more, though the longest prompt and the longest output together do."""
    model = presets.gpt2("tiny", vocabulary=12, length=8).build()
    inputs, outputs = [[1] * 7, [2, 3]], [[4], [5] * 6]
    together = score(model, inputs, outputs)
    for row, found in enumerate(together):
        (alone,) = score(model, inputs[row : row + 1], outputs[row : row + 1])
        assert found.total == pytest.approx(alone.total, abs=1e-5)


@methods
def test_learned_positions_may_be_used_to_the_last(method):
    """The last new token is never read, so it needs no position."""
    model = presets.gpt2("tiny", vocabulary=12, length=8).build()
    for row in generate(model, [[1, 2, 3, 4], [5]], method, rules=Rules(max_new=5)):
        assert len(row[0].tokens) == 5
    for row in generate(model, [[1] * 8], method, rules=Rules(max_new=1)):
        assert len(row[0].tokens) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@methods
def test_other_dtypes_write_too(method, dtype):
    model = presets.llama("tiny", vocabulary=30).build().to(dtype)
    for row in generate(model, [[1, 2, 3], [4]], method, rules=Rules(max_new=4), candidates=2):
        assert len(row[0].tokens) == 4
        assert all(-50 < log_prob <= 0 for log_prob in row[0].log_probs)


@dataclass(frozen=True)
class Softcap(Output):
    """A user's own output: logits within -cap and cap."""

    causal: ClassVar[bool] = True
    by_position: ClassVar[bool] = True
    cap: float = 2.0

    def build(self, d_model, table):
        return ToSoftcap(table, self.cap)


class ToSoftcap(nn.Module):
    def __init__(self, table, cap):
        super().__init__()
        self.table, self.cap = table, cap

    def forward(self, x, lengths=None):
        return self.cap * torch.tanh(x @ self.table.T / self.cap)


@methods
def test_an_output_of_ones_own_writes_text(method):
    spec = replace(presets.gpt2(presets.Size(1, 16, 2, 2, 16), vocabulary=VOCABULARY), output=Softcap())
    case = case_of(spec.build().double().eval())
    for row, hypotheses in enumerate(case.generate(method, Rules(max_new=4))):
        for made in hypotheses:
            table = case.log_probs(row, [list(made.tokens)])[0]
            wanted = [table[place, token] for place, token in enumerate(made.tokens)]
            assert apart("log-probabilities", list(made.log_probs), torch.stack(wanted)) == []


@pytest.mark.parametrize("method", [Greedy(), Sample(seeds=1), Beam(width=3, n_best=2)])
def test_one_row_is_one_input_and_gives_its_hypotheses(method):
    model, rules = presets.gpt2("tiny", vocabulary=20).build(), Rules(max_new=5)
    [expected] = generate(model, [[5, 6, 7]], method, rules=rules)
    for row in ([5, 6, 7], (5, 6, 7), torch.tensor([5, 6, 7])):
        assert same_but_rounding(generate(model, row, method, rules=rules), expected)
    assert same_but_rounding(generate(model, torch.tensor([[5, 6, 7]]), method, rules=rules), [expected])
    both = presets.tiny(vocabulary=20).build()
    alone = generate(both, [5, 6], method, rules=rules, prefix=[1])
    assert same_but_rounding(alone, generate(both, [[5, 6]], method, rules=rules, prefix=[[1]])[0])


def test_one_row_is_scored_and_streamed_alone():
    model = presets.gpt2("tiny", vocabulary=20).build()
    assert same_but_rounding(score(model, [5, 6], [7, 8]), score(model, [[5, 6]], [[7, 8]])[0])
    rules = Rules(max_new=3)
    assert same_but_rounding(*(list(stream(model, row, rules=rules)) for row in ([5, 6], [[5, 6]])))


@pytest.mark.parametrize(("length", "expected"), [(1024, 64), (10, 8)])
def test_without_rules_there_are_64_tokens_or_as_many_as_there_are_positions(length, expected):
    model = presets.gpt2("tiny", vocabulary=20, length=length).build()
    [best] = generate(model, [5, 6, 7])
    assert len(best.tokens) == len(list(stream(model, [5, 6, 7]))) == expected
    [shorter], [longer] = generate(model, [[5], [5, 6, 7]])
    assert len(shorter.tokens) == len(longer.tokens) == expected


def test_capped_logits_are_capped_in_steps_of_many_rows(monkeypatch):
    monkeypatch.setattr(session, "MUCH", 1)  # logits of more rows than FEW are then a product with the bare table
    torch.manual_seed(0)
    model = replace(presets.gpt2("tiny", vocabulary=VOCABULARY), output=NextToken(cap=0.5)).build().eval()
    prompts = [[1, 2, row % VOCABULARY] for row in range(session.FEW + 1)]
    found = [best for [best] in generate(model, prompts, rules=Rules(max_new=3))]
    scores = score(model, prompts, [best.tokens for best in found])
    assert [best.score for best in found] == pytest.approx([made.total for made in scores], abs=1e-5)
