"""Keyed dropout: the mask of a row is its own, whatever rows are beside it; and masks are as random as torch's."""

import math
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clearhead.attention import similarity, weighting
from clearhead.errors import OptionError
from clearhead.training import distributed, machine
from clearhead.training.distributed import Processes
from clearhead.training.keyed_dropout import ROW_KEYS, KeyedDropout, draw_row_keys, keep_mask
from clearhead.training.recipe import Machine
from clearhead.training.train_step import BatchStream, TrainState
from tests.training import small_runs
from tests.training.tiny import recipe_for, work_on


def keys_of(rows, seed=0):
    return draw_row_keys(np.random.default_rng(seed), rows)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_masks_are_as_random_as_they_should_be(share):
    """Shares of rows and places, neighbours, rows and sites: each within five standard deviations of chance."""
    n, places = 64, 4096
    keys = keys_of(n)
    kept = keep_mask(keys, 0, places, share).double()
    spread = math.sqrt(share * (1 - share))
    centred = (kept - (1 - share)) / spread
    other = (keep_mask(keys, 1, places, share).double() - (1 - share)) / spread
    sums = [centred.sum() / math.sqrt(n * places), (centred * other).sum() / math.sqrt(n * places)]
    sums += [(centred[:, lag:] * centred[:, :-lag]).sum() / math.sqrt(n * places) for lag in (1, 2, 64, 512)]
    sums += [*(centred.sum(1) / math.sqrt(places)), *(centred.sum(0) / math.sqrt(n))]
    sums += [*((centred @ centred.T / math.sqrt(places))[~torch.eye(n, dtype=torch.bool)])]
    assert max(abs(one) for one in sums) < 5


def test_the_mask_of_a_row_is_its_own():
    keys, x = keys_of(6), torch.randn(6, 5, 8, dtype=torch.float64)
    with KeyedDropout(keys):
        whole = F.dropout(x, 0.3), F.dropout(x, 0.3)
    parts = []
    for some in (slice(0, 2), slice(2, 6)):
        with KeyedDropout(keys[some]):
            parts.append((F.dropout(x[some], 0.3), F.dropout(x[some], 0.3)))
    for site in range(2):
        assert torch.equal(whole[site], torch.cat([part[site] for part in parts]))
    assert not torch.equal(whole[0], whole[1])
    kept = whole[0] != 0
    assert (whole[0] - x / 0.7)[kept].abs().max() < 1e-12


@pytest.mark.parametrize(("causal", "bias"), [(False, None), (True, None), (False, "hides"), (False, "adds")])
def test_attention_without_a_drop_is_torchs(causal, bias):
    """At a share of 1e-9 nothing of these is dropped: what is left is the softmax, its mask and its scale."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    mask = {None: None, "hides": torch.rand(5, 5) > 0.3, "adds": torch.randn(4, 5, 5)}[bias]
    mask = mask | torch.eye(5, dtype=torch.bool) if bias == "hides" else mask
    options = {"attn_mask": mask, "is_causal": causal, "scale": 0.3, "enable_gqa": True}
    with KeyedDropout(keys_of(2)):
        ours = F.scaled_dot_product_attention(query, key, value, dropout_p=1e-9, **options)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value, **options))


@pytest.mark.slow
def test_the_gradient_of_a_pass_is_that_of_its_rows(tmp_path):
    """Micro-batches in one part or in two, R-Drop's two passes too: the same loss and gradients, in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        recipe = recipe_for(small_runs.translating, tmp_path, dropout=0.3, machine=Machine(device="cpu", threads=1))
        recipe = replace(recipe, machine=replace(recipe.machine, keyed_dropout=True))
        work = work_on(recipe, tmp_path)
        batch = next(BatchStream(work.recipe, work.task, work.prepared.train, filled=False).batches(3))
        for r_drop in (0.0, 1.0):
            found = [gradients_of(work, batch, parts, r_drop) for parts in (1, 1, 3)]
            assert torch.equal(found[0], found[1])
            torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-12 * float(found[0].abs().max()))
    finally:
        torch.set_default_dtype(torch.float32)
    plain = {name: one for name, one in batch.items() if name != ROW_KEYS}
    other = work_on(replace(recipe, machine=Machine()), tmp_path)
    found = next(BatchStream(other.recipe, other.task, other.prepared.train, filled=False).batches(3))
    assert found.keys() == plain.keys()


def gradients_of(work, batch, parts, r_drop):
    torch.manual_seed(0)
    optimizer = replace(work.recipe.optimizer, r_drop=r_drop)
    state = TrainState(work.spec.build().train(), work.task, optimizer, work.recipe.machine)
    torch.manual_seed(parts)  # of no account: no mask is drawn from it
    for part in range(parts):
        rows = {name: one.tensor_split(parts)[part] for name, one in batch.items()}
        state.backward(rows, torch.tensor(1.0))
    return torch.cat([one.flatten() for one in state.gradients()])


def test_what_has_no_keyed_masks_is_refused(tmp_path):
    with KeyedDropout(keys_of(3)), pytest.raises(OptionError, match="alpha_dropout has no keyed masks"):
        torch.nn.AlphaDropout(0.5)(torch.ones(3, 4))
    with KeyedDropout(keys_of(3)), pytest.raises(OptionError, match=r"the 3 rows of the batch; came \(4, 3\)"):
        torch.nn.Dropout(0.5)(torch.ones(4, 3))
    with KeyedDropout(keys_of(3)):
        assert torch.nn.Dropout(0.5).eval()(torch.ones(4, 3)).all()
    for option, name in (("compile", "--compile"), ("activation_checkpointing", "--activation-checkpointing")):
        with pytest.raises(OptionError, match=f"keyed_dropout: is not offered with {name}"):
            machine.resolve_machine(replace(Machine(device="cpu", keyed_dropout=True), **{option: True}))


@pytest.mark.parametrize("attention", [{"similarity": similarity.Additive()}, {"weighting": weighting.Sparsemax()}])
@pytest.mark.slow
def test_attention_block_by_block_has_the_masks_of_the_whole(attention, tmp_path, monkeypatch):
    """Blocks are computed again in the backward pass, and their size follows from the rows of a process."""
    torch.set_default_dtype(torch.float64)
    try:
        recipe = recipe_for(small_runs.stretch, tmp_path, dropout=0.0, machine=Machine(device="cpu", threads=1))
        recipe = replace(recipe, machine=replace(recipe.machine, keyed_dropout=True))
        block = recipe.model.blocks[0]
        block = replace(block, attention=replace(block.attention, dropout=0.5, **attention))
        work = work_on(replace(recipe, model=replace(recipe.model, blocks=(block, block))), tmp_path)
        batch = next(BatchStream(work.recipe, work.task, work.prepared.train, filled=False).batches(0))
        whole = gradients_of(work, batch, 1, 0.0)
        blocks = []
        monkeypatch.setattr("clearhead.attention.kernels.blockwise.BLOCK_NUMBERS", 2000)
        monkeypatch.setattr(KeyedDropout, "drop_blocks", counting(KeyedDropout.drop_blocks, blocks))
        for parts in (1, 3):
            found = gradients_of(work, batch, parts, 0.0)
            torch.testing.assert_close(found, whole, rtol=0, atol=1e-12 * float(whole.abs().max()))
        assert len(blocks) >= 2
    finally:
        torch.set_default_dtype(torch.float32)


def counting(function, calls):
    def counted(*args):
        calls.append(args)
        return function(*args)

    return counted


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return F.dropout(x, 0.5)


def test_dropout_that_may_be_drawn_again_in_a_backward_pass_is_refused():
    with KeyedDropout(keys_of(3)), pytest.raises(OptionError, match="keyed_dropout: dropout inside of an autograd"):
        Twice.apply(torch.ones(3, 4, requires_grad=True))


def test_several_processes_have_keyed_masks_unless_they_cannot(monkeypatch):
    alone = Machine(device="cpu")
    assert machine.resolve_machine(alone).keyed_dropout is None
    together = Processes(count=2, control=types.SimpleNamespace())
    monkeypatch.setattr(distributed.MEMBERSHIP, "processes", together)
    assert machine.resolve_machine(alone).keyed_dropout is True
    assert machine.resolve_machine(replace(alone, compile=True)).keyed_dropout is False
    assert machine.resolve_machine(replace(alone, keyed_dropout=False)).keyed_dropout is False
