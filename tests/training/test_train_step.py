"""The learner: a step is torch's AdamW on the mean of the places, however it is cut; and the average of the weights.

Batches of all epochs: begun anywhere they are the same, and parts of one have all of its targets.
"""

import copy
import gc
import itertools
import math
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.model.presets import Size
from clearhead.training.losses import NOTHING
from clearhead.training.optimizers import copy_all, move_all, zero_all
from clearhead.training.recipe import Machine, Optimizer
from clearhead.training.schedules import Ema, Last
from clearhead.training.tasks import Generate
from clearhead.training.tasks.learning import decoder
from clearhead.training.train_step import BatchStream, LossPass, TrainState, loss_in, split_rows
from tests.model.own_feed_forward import ChangedAfter, Own, Said
from tests.training import small_runs
from tests.training.tiny import recipe_for, work_on

VOCABULARY, WIDTH = 64, 6
TASK = Generate(tokenizers={}, context=WIDTH)
CPU = Machine(device="cpu", precision="float32", threads=1)
EXACT = {"rtol": 0, "atol": 1e-12}


def built(dropout=0.0, dtype=torch.float64):
    torch.manual_seed(1)
    return decoder(Size(1, 8, 2, 2, 16), WIDTH, dropout).build().to(dtype).train()


def batch(rows=6):
    ids = torch.randint(VOCABULARY, (rows, WIDTH + 1))
    wanted = ids[:, 1:].clone()
    wanted[torch.rand(rows, WIDTH) < 0.3] = NOTHING
    return {"tokens": ids[:, :-1], "wanted": wanted}


def learner_of(model=None, machine=CPU, **optimizer):
    return TrainState(built() if model is None else model, TASK, Optimizer(**optimizer), machine)


def cut(whole, sizes):
    pieces = {name: one.split(sizes) for name, one in whole.items()}
    return [{name: pieces[name][i] for name in pieces} for i in range(len(sizes))]


def plain_steps(model, batches, *, rate, smoothing=0.0, clip=None, weight_decay=0.0):
    """The same by hand: torch's AdamW as anyone would write it, matrices decayed and vectors not."""
    matrices = [one for one in model.parameters() if one.ndim >= 2]
    vectors = [one for one in model.parameters() if one.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-8)
    for one in batches:
        optimiser.zero_grad()
        places = int((one["wanted"] != NOTHING).sum())
        logits, wanted = model(one["tokens"]).flatten(0, 1), one["wanted"].flatten()
        loss = F.cross_entropy(logits, wanted, ignore_index=NOTHING, reduction="sum", label_smoothing=smoothing)
        (loss * torch.tensor(1 / places)).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()


def assert_same(model, other):
    ours, theirs = dict(model.state_dict()), dict(other.state_dict())
    torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("clip", [None, 0.05, 100.0])
def test_steps_are_those_of_plain_adamw(clip, smoothing):
    batches = [batch() for _ in range(4)]
    train_state = learner_of(clip=clip, smoothing=smoothing, weight_decay=0.3)
    other = copy.deepcopy(train_state.model)
    for one in batches:
        train_state.step([one], 0.01)
    plain_steps(other, batches, rate=0.01, smoothing=smoothing, clip=clip, weight_decay=0.3)
    assert_same(train_state.model, other)


def test_matrices_decay_and_vectors_do_not():
    """With nothing asked there is no gradient, and only the decay is left."""
    train_state = learner_of(weight_decay=0.5)
    before = {name: one.clone() for name, one in train_state.model.named_parameters()}
    nothing = batch() | {"wanted": torch.full((6, WIDTH), NOTHING)}
    train_state.step([nothing], 0.1)
    assert {one.ndim for one in before.values()} == {1, 2}
    for name, one in train_state.model.named_parameters():
        share = 1 - 0.1 * 0.5 if one.ndim >= 2 else 1.0
        torch.testing.assert_close(one, before[name] * share, **EXACT)
    assert train_state.totals() == (0.0, 0, 0.0)


@pytest.mark.parametrize("sizes", [[6], [3, 3], [1, 2, 3], [1] * 6])
def test_passes_add_up_to_the_whole_batch(sizes):
    """Each place counts the same, in whichever pass it is."""
    whole = batch()
    one, several = learner_of(smoothing=0.1), learner_of(smoothing=0.1)
    for _ in range(3):
        one.step([whole], 0.01)
        several.step(cut(whole, sizes), 0.01)
    assert_same(one.model, several.model)
    totals, others = one.totals(), several.totals()
    assert totals == pytest.approx(others, rel=1e-12)
    assert totals.places == 3 * int((whole["wanted"] != NOTHING).sum())


@pytest.mark.parametrize("sizes", [[6], [2, 4], [2, 2, 2]])
def test_steps_with_weights_rounded_at_once_are_those_of_rounding_each(sizes):
    """The first pass of a step writes over the last step's gradients, the others add."""
    machine, batches = replace(CPU, precision="bfloat16"), [batch() for _ in range(3)]
    whole = learner_of(built(dtype=torch.float32), machine, weight_decay=0.1)
    each = learner_of(built(dtype=torch.float32), machine, weight_decay=0.1)
    assert whole.rounds_at_once
    each.rounds_at_once, each.forward = False, LossPass(each.loss_module, loss_in, torch.bfloat16)
    each.clear_gradients()
    for one in batches:
        for train_state in (whole, each):
            train_state.step(cut(one, sizes), 0.01)
    assert_same(whole.model, each.model)
    assert whole.totals() == each.totals()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_is_freed_with_its_training(precision):
    """Without waiting for Python's collector: a GPU's memory would be held until then."""
    train_state = learner_of(built(dtype=torch.float32), replace(CPU, precision=precision))
    train_state.step([batch()], 0.01)
    weight = weakref.ref(next(train_state.model.parameters()))
    gc.disable()
    try:
        del train_state
        assert weight() is None
    finally:
        gc.enable()


def test_r_drop_doubles_the_batch_and_halves_the_loss():
    """Without dropout both answers agree, and R-Drop changes nothing."""
    whole = batch()
    plain, dropped = learner_of(smoothing=0.1), learner_of(smoothing=0.1, r_drop=5.0)
    for one in (plain, dropped):
        one.step([whole], 0.01)
    assert_same(plain.model, dropped.model)
    assert plain.totals() == pytest.approx(dropped.totals(), rel=1e-12)


def test_r_drop_answers_with_two_draws_of_dropout():
    train_state = learner_of(built(dropout=0.5), r_drop=5.0)
    whole = batch()
    torch.manual_seed(3)
    apart = train_state.run_loss(train_state.loss_module, whole, None).objective
    train_state.model.eval()
    together = train_state.run_loss(train_state.loss_module, whole, None).objective
    assert apart.item() > together.item()


def test_totals_are_means_once_divided_and_begin_again():
    train_state = learner_of()
    whole = batch()
    places = int((whole["wanted"] != NOTHING).sum())
    with torch.no_grad():
        logits = train_state.model(whole["tokens"]).flatten(0, 1)
    expected = F.cross_entropy(logits, whole["wanted"].flatten(), ignore_index=NOTHING, reduction="sum").item()
    train_state.step([whole], 0.0)
    train_state.step([whole], 0.0)
    found = train_state.totals()
    assert (found.nll, found.places) == (pytest.approx(2 * expected), 2 * places)
    assert found.grad_norm > 0
    assert train_state.totals()[:2] == (0.0, 0)


def test_the_norm_that_is_told_is_from_before_the_clipping():
    norms = []
    for clip in (None, 1e-3):
        train_state = learner_of(clip=clip)
        torch.manual_seed(5)
        train_state.step([batch()], 0.0)
        norms.append(train_state.totals().grad_norm)
    assert norms[0] == norms[1] > 1e-3


@pytest.mark.parametrize("averaging", [Ema(0.7), Last(share=0.5, every=3), Last(share=0.4, every=1), Last(share=1.0)])
@pytest.mark.parametrize("asked", [(), (1, 4, 5), tuple(range(1, 13))], ids=["never", "thrice", "always"])
def test_the_average_is_what_its_pulls_make_whenever_it_is_asked_for(averaging, asked):
    train_state = learner_of(averaging=averaging)
    total = 12
    by_hand = [one.detach().clone() for one in train_state.parameters]
    for step in range(1, total + 1):
        ema_weight = averaging.ema_weight(step, total)
        train_state.hold_average(ema_weight)
        train_state.step([batch()], 0.02)
        train_state.update_average(ema_weight)
        by_hand = [
            old + ema_weight * (new.detach() - old) for old, new in zip(by_hand, train_state.parameters, strict=True)
        ]
        if step in asked:
            assert train_state.averaged_model() is train_state.averaged
    found = list(train_state.averaged_model().parameters())
    for one, other in zip(found, by_hand, strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    assert not torch.equal(found[0], train_state.parameters[0])


def test_without_averaging_the_weights_to_use_are_the_weights():
    train_state = learner_of()
    train_state.step([batch()], 0.1)
    train_state.update_average(1.0)
    assert train_state.averaged_model() is train_state.model


def test_weights_that_are_no_numbers_are_seen():
    train_state = learner_of()
    assert train_state.is_finite()
    for wrong in (float("nan"), float("inf")):
        with torch.no_grad():
            train_state.parameters[-1].view(-1)[0] = wrong
        assert not train_state.is_finite()


def test_bfloat16_is_used_where_it_is_asked_for_and_the_weights_stay_float32():
    model = built(dtype=torch.float32)
    train_state = learner_of(model, Machine(device="cpu", precision="bfloat16", threads=1))
    plain = learner_of(copy.deepcopy(model))
    one = batch()
    for each in (train_state, plain):
        each.step([one], 0.01)
    found, exact = train_state.totals().nll, plain.totals().nll
    assert found != exact
    assert found == pytest.approx(exact, rel=2e-2)
    assert {one.dtype for one in train_state.parameters} == {torch.float32}


def test_checkpointing_in_bfloat16_changes_no_bit():
    """The second computation of a block comes after the forward pass, and has the rounded weights of the first."""
    batches = [batch()]
    found = []
    for again in (False, True):
        model = built(dtype=torch.float32)
        model.stack.checkpointing = again
        machine = replace(CPU, precision="bfloat16", activation_checkpointing=again)
        learner = learner_of(model, machine)
        assert learner.rounds
        learner.step(batches, 1e-3)
        found.append(learner.totals())
    assert found[1] == found[0]


@pytest.mark.parametrize(("kind", "silent"), [(Own, Own), (Said, None), (ChangedAfter, ChangedAfter)])
def test_a_part_of_the_users_own_is_rounded_for_if_it_says_so(kind, silent):
    model = built(dtype=torch.float32)
    model.stack.blocks[0].feed_forward = kind(model.stack.blocks[0].feed_forward)
    learner = learner_of(model, replace(CPU, precision="bfloat16"))
    assert learner.silent is silent
    assert (learner.rounds, learner.assumes_finite) == (silent is None, silent is None)
    learner.step([batch()], 1e-3)
    assert math.isfinite(learner.totals().nll)


class Weighted(Generate):
    """It computes with logits in float32."""

    def logits(self, model, batch):
        found = super().logits(model, batch)
        return found @ torch.eye(found.shape[-1])


class Plain(Generate):
    plain_logits = True

    def logits(self, model, batch):
        return super().logits(model, batch)


class Renamed(Generate):
    """It leaves logits as they are."""


@pytest.mark.parametrize(("kind", "rounds"), [(Weighted, False), (Plain, True), (Renamed, True)])
def test_a_task_of_the_users_own_may_compute_with_logits_in_float32(kind, rounds):
    machine = replace(CPU, precision="bfloat16")
    task = kind(tokenizers=TASK.tokenizers, context=TASK.context)
    learner = TrainState(built(dtype=torch.float32), task, Optimizer(), machine)
    assert (learner.rounds, learner.assumes_finite) == (rounds, rounds)
    learner.step([batch()], 1e-3)
    assert math.isfinite(learner.totals().nll)


def test_on_a_cpu_a_step_is_eager():
    assert learner_of().captured is None


def test_lists_are_changed_in_place():
    ours, theirs = [torch.ones(2), torch.zeros(3)], [torch.full((2,), 5.0), torch.full((3,), 4.0)]
    move_all(ours, theirs, 0.25)
    assert [one.tolist() for one in ours] == [[2.0] * 2, [1.0] * 3]
    copy_all(ours, theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    zero_all(ours)
    assert not any(one.any() for one in ours)


class Running(nn.Module):
    """A user's own norm, which keeps a running mean of squares, as BatchNorm does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("square", torch.ones(()))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.square.lerp_(x.square().mean(), 0.5)
        return x * self.square.rsqrt()


@pytest.mark.parametrize("averaging", [Ema(0.9), Last(share=1.0, every=2)], ids=["ema", "last"])
def test_the_averaged_model_has_the_buffers_of_the_training(averaging):
    model = built()
    model.stack.norm = Running().double()
    learner = learner_of(model, averaging=averaging)
    for step in range(1, 4):
        weight = averaging.ema_weight(step, 3)
        learner.hold_average(weight)
        learner.step([batch()], 0.01)
        learner.update_average(weight)
        assert model.stack.norm.square != 1
        assert torch.equal(learner.averaged_model().stack.norm.square, model.stack.norm.square)
    model.stack.norm.square.fill_(torch.nan)
    assert not learner.is_finite()


def test_a_buffer_that_no_checkpoint_could_hold_is_told_before_training():
    model = built()
    model.stack.norm.register_buffer("far", torch.full((2,), -torch.inf))
    with pytest.raises(OptionError, match=r"stack\.norm\.far has values that are no numbers.*persistent=False"):
        learner_of(model)
    model.stack.norm.register_buffer("far", torch.full((2,), -torch.inf), persistent=False)
    assert learner_of(model).is_finite()


@pytest.fixture
def stream(tmp_path):
    trainer = work_on(recipe_for(small_runs.filling, tmp_path), tmp_path)  # what is masked is drawn at random
    return lambda: BatchStream(trainer.recipe, trainer.task, trainer.prepared.train, filled=False)


@pytest.mark.parametrize("skip", [1, 7])
def test_batches_that_are_begun_anywhere_are_those_of_a_whole_run(stream, skip):
    count = stream().count() + 3  # into the second epoch
    whole = [*itertools.islice(stream().batches(0), count)]
    rest = [*itertools.islice(stream().batches(skip), count - skip)]
    for batch, again in zip(whole[skip:], rest, strict=True):
        assert batch.keys() == again.keys()
        assert all(torch.equal(batch[name], again[name]) for name in batch)


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_parts_of_a_batch_have_each_of_its_targets_once(stream, parts):
    batch = next(stream().batches(0))
    wanted = torch.cat([part["wanted"].flatten() for part in split_rows(batch, parts)])
    assert sorted(wanted[wanted != NOTHING].tolist()) == sorted(batch["wanted"][batch["wanted"] != NOTHING].tolist())
