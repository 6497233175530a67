"""The loss a chunk of places at a time is the loss of all of them: values, gradients, steps and validation."""

import pytest
import torch

from clearhead.model import presets
from clearhead.model.outputs import NextToken, ToVocabulary
from clearhead.model.presets import Size
from clearhead.training import chunked_loss
from clearhead.training.chunked_loss import chunked_cross_entropy, logits_by_chunk, long_output
from clearhead.training.losses import NOTHING, cross_entropy
from clearhead.training.recipe import Machine, Optimizer
from clearhead.training.tasks import Generate
from clearhead.training.train_step import TrainState

VOCABULARY, PLACES = 31, 23
TASK = Generate(tokenizers={}, context=PLACES)
SPEC = presets.llama(Size(2, 16, 2, 2, 32), vocabulary=VOCABULARY, tied=True)


@pytest.fixture
def few_at_once(monkeypatch):
    """Chunks of five places, from the first batch on."""
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", VOCABULARY)
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", 5 * VOCABULARY)


def batch(rows=1):
    ids = torch.randint(VOCABULARY, (rows, PLACES + 1))
    return {"tokens": ids[:, :-1], "wanted": ids[:, 1:].masked_fill(torch.rand(rows, PLACES) < 0.3, NOTHING)}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("spec", [NextToken(), NextToken(bias=True, cap=2.0, scaled=True, tied=False)])
def test_values_and_gradients_are_those_of_all_places(few_at_once, spec, smoothing):
    table = torch.nn.Parameter(torch.randn(VOCABULARY, 8, dtype=torch.float64))
    output = spec.build(8, table).double()
    x = torch.randn(PLACES, 8, dtype=torch.float64, requires_grad=True)
    wanted = batch()["wanted"][0]
    tensors = [x, *output.parameters()]
    losses = (
        chunked_cross_entropy(output, x, wanted, smoothing),
        cross_entropy(output(x[None])[0], wanted, smoothing),
    )
    ours, theirs = (torch.autograd.grad(3 * loss.objective, tensors) for loss in losses)
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("precision", "steps", "near"), [("float32", 3, 1e-5), ("bfloat16", 1, 1e-2)])
def test_steps_are_those_of_all_places(monkeypatch, precision, steps, near):
    machine = Machine(device="cpu", precision=precision, threads=1)
    found = []
    for most in (chunked_loss.LOGITS_AT_ONCE, VOCABULARY):
        monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", most)
        monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", 5 * VOCABULARY)
        torch.manual_seed(1)
        learner = TrainState(SPEC.build().train(), TASK, Optimizer(), machine)
        for _ in range(steps):
            learner.step([batch(2)], 1e-2)
        found.append(tuple(learner.totals()))
    assert found[1] == pytest.approx(found[0], rel=near)


def test_validation_sees_every_place_once(few_at_once):
    model, one = SPEC.build().eval(), batch(2)
    with torch.no_grad():
        chunks = list(logits_by_chunk(model, TASK, one))
        whole = model(one["tokens"]).flatten(0, 1)
    assert len(chunks) > 2
    torch.testing.assert_close(torch.cat([logits for logits, _ in chunks]), whole, rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.cat([targets for _, targets in chunks]), one["wanted"].flatten())


class Changed(Generate):
    def logits(self, model, batch):
        return 2 * super().logits(model, batch)


class ChangedPlainly(Changed):
    plain_logits = True


def test_a_task_that_changes_logits_says_whether_they_are_plain(few_at_once):
    model = SPEC.build()
    for kind, chunked in ((Changed, False), (ChangedPlainly, True)):
        assert (long_output(model, kind(tokenizers={}, context=PLACES), PLACES) is not None) == chunked


def test_small_batches_and_outputs_of_the_users_own_are_left_alone(few_at_once, monkeypatch):
    class Own(ToVocabulary):  # type: ignore[misc]
        pass

    model = SPEC.build()
    assert long_output(model, TASK, PLACES) is model.output
    model.output.__class__ = Own
    assert long_output(model, TASK, PLACES) is None
    model.output.__class__ = ToVocabulary
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", PLACES * VOCABULARY)
    assert long_output(model, TASK, PLACES) is None
