"""Which layers several processes can divide. test_together.py compares what they compute with one process."""

import types
from dataclasses import dataclass, replace

import pytest
import torch

from clearhead.attention import positions, similarity
from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.errors import OptionError
from clearhead.model import FeedForward, ReLU, RMSNorm
from clearhead.model.feedforward import Network
from clearhead.model.lora import Lora
from clearhead.model.variants import map_blocks, with_dropout
from clearhead.training.distributed import Processes
from clearhead.training.parallel import check_together, choose_parallel
from clearhead.training.recipe import FineTuning, Machine
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import recipe_for


class OwnNetwork(Network):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.down = torch.nn.Linear(d_ff, d_model)


@dataclass(frozen=True)
class OwnFeedForward(FeedForward):
    def build(self, d_model):
        return OwnNetwork(d_model, self.d_ff)


def attention(**changed):
    return lambda block: replace(block, attention=replace(block.attention, **changed))


def network(feed_forward):
    return lambda block: replace(block, feed_forward=feed_forward)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (attention(heads=Heads(3, d_head=4)), "3 heads, 3 of keys, cannot be divided over 2"),
        (attention(heads=Heads(4, kv=1)), "4 heads, 1 of keys, cannot be divided over 2"),
        (attention(heads=SlicedHeads(2)), "query map must be one plain linear map .* SliceMap"),
        (attention(heads=Heads(2, qk_norm=RMSNorm())), "query map .* without a norm"),
        (attention(heads=Heads(2, value_rank=2)), "value map must be .* LowRankMap"),
        (attention(position=positions.ALiBi()), "ALiBi.* has a bias for each head"),
        (attention(position=positions.T5Bias()), "T5Bias.* has a bias for each head"),
        (attention(similarity=similarity.Cosine()), "LearnedCosine.* has learned values"),
        (network(ReLU(33)), "d_ff = 33 cannot be divided over 2 processes"),
        (network(OwnFeedForward(4)), "OwnNetwork does not say how its maps are divided"),
    ],
)
def test_layers_that_cannot_be_divided_are_refused_by_name(change, match, tmp_path):
    recipe = divided(tmp_path)
    with pytest.raises(OptionError, match=match):
        check_together(replace(recipe, model=map_blocks(recipe.model, change)), 2)


def test_what_goes_with_no_divided_layer_is_refused_by_name(tmp_path):
    recipe = divided(tmp_path)
    check_together(recipe, 2)
    tuning = FineTuning(source="", run=None, step=1, sha256="", lora=Lora(rank=2))
    with pytest.raises(OptionError, match="lora: adapters are not divided"):
        check_together(replace(recipe, fine_tuning=tuning), 2)
    dropping = replace(recipe, model=with_dropout(recipe.model, 0.1))
    check_together(dropping, 2)
    for option in ({"keyed_dropout": False}, {"activation_checkpointing": True}):
        with pytest.raises(OptionError, match="which takes --keyed-dropout, and that goes without --activation"):
            check_together(replace(dropping, machine=replace(recipe.machine, **option)), 2)
    three = Processes(count=3, local_count=3, control=types.SimpleNamespace())
    with pytest.raises(OptionError, match="3 processes cannot be grouped by tensor=2; start a multiple of 2"):
        choose_parallel(recipe, three, recipe.model.build(), torch.device("cpu"))
    with pytest.raises(OptionError, match="3 processes cannot be grouped by tensor=2; start a multiple of 2"):
        check_together(recipe, 3)


@pytest.mark.parametrize(
    ("parallel", "said"),
    [("tensor=2", "tensor=2 takes 2"), ("fsdp,context=2,tensor=2", "context=2 and tensor=2 takes 4")],
)
def test_one_process_does_not_train_alone_what_several_should(parallel, said, tmp_path):
    recipe = replace(divided(tmp_path), machine=Machine(device="cpu", parallel=parallel))
    with pytest.raises(OptionError, match=f"parallel: {said} processes, and one would train alone; start them with"):
        train(tmp_path / "run", recipe)
    assert not (tmp_path / "run").exists()


def divided(folder):
    return replace(recipe_for(small_runs.documents, folder), machine=Machine(device="cpu", parallel="tensor=2"))
