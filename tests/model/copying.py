"""A peer's weights copied into a model of ours, and the two compared: what they answer, and every gradient.

What is copied is written down as `{path of a module of ours: the peer's tensors}`, in the order in which that module
has its own parameters. The tensors may be made from the peer's (a transpose, a slice, a sum): gradients of ours are
carried back through the same steps, and compared with those that the peer has by itself.
"""

from itertools import chain
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from clearhead.taps import watching
from tests.rounding import assert_equal_but_rounding

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
pairs_of_lengths = pytest.mark.parametrize(
    "lengths",
    [((9, 5, 1), (4, 7, 2)), ((17, 17), (6, 6)), ((1,), (1,))],
    ids=["padded", "whole", "one token"],
)
"""Of the sources and of the targets."""


class Batch(NamedTuple):
    """Sequences of these lengths, padded on the right with tokens like any others."""

    tokens: Tensor
    lengths: Tensor | None
    real: Tensor

    @property
    def attention_mask(self):
        return self.real.long()


def draw(lengths, vocabulary):
    """Random sequences; `lengths` is None where all are of one length, so that no mask is needed."""
    n, counts = max(lengths), torch.tensor(lengths)
    tokens = torch.randint(vocabulary, (len(lengths), n))
    return Batch(tokens, None if min(lengths) == n else counts, torch.arange(n) < counts[:, None])


def randomised(peer, dtype):
    """Ready to be compared: no bias zero and no gamma one, as they are in a fresh model, where half is not seen."""
    peer = peer.to(dtype).eval()
    for name, parameter in peer.named_parameters():
        if parameter.requires_grad:
            gamma = parameter.ndim == 1 and name.endswith("weight")
            spread = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
            nn.init.normal_(parameter, mean=1.0 if gamma else 0.0, std=spread)
    return peer


def built(spec, dtype):
    """A model of ours, ready to be compared. The dropout that presets have by themselves must not show."""
    return spec.build().to(dtype).eval()


def asked(batch):
    """What a peer of Hugging Face's is told of a batch."""
    return {"input_ids": batch.tokens, "attention_mask": batch.attention_mask, "use_cache": False}


def seen(model, run):
    """Every named value of a run."""
    values = {}
    with watching(model, values.setdefault):
        run(model)
    return values


def own(module):
    """What a module itself owns: weight and bias, or the weight alone."""
    return tuple(module.parameters(recurse=False))


def attention(path, query, key, value, output):
    names = ("query.linear", "key.linear", "value.linear", "output")
    return {f"{path}.{name}": tensors for name, tensors in zip(names, (query, key, value, output), strict=True)}


def under(path, weights):
    return {f"{path}.{name}": tensors for name, tensors in weights.items()}


@torch.no_grad()
def copy(ours, weights):
    """Writes the weights; returns the peer's tensor for each parameter of ours, one for one and none left out."""
    source = {}
    for path, tensors in weights.items():
        for parameter, tensor in zip(own(ours.get_submodule(path)), tensors, strict=True):
            assert parameter.shape == tensor.shape, path
            assert source.setdefault(parameter, tensor) is tensor, f"{path} is tied, and in the peer it is not"
            parameter.copy_(tensor)
    left = [name for name, parameter in ours.named_parameters() if parameter not in source]
    assert not left, f"not written: {left}"
    assert len({id(tensor) for tensor in source.values()}) == len(source), "the peer ties what is not tied here"
    return source


def agree(ours, peer, weights, answer, theirs, *, fixed=()):
    """Once the weights are copied, `answer(ours)` is `theirs`, and so are the gradients of every weight of the peer.

    `fixed` names the peer's parameters that do not learn; ours has computed numbers in their place.
    """
    source = copy(ours, weights)
    mine = answer(ours)
    assert_equal_but_rounding(mine, theirs)
    with torch.no_grad():  # another way to the logits where there are few rows
        assert_equal_but_rounding(answer(ours), theirs, "answer without gradients")
    assert {name for name, parameter in peer.named_parameters() if not parameter.requires_grad} == set(fixed)
    compare_gradients(mine, theirs, source, peer)


def compare_gradients(mine, theirs, source, peer):
    """Of one random sum of the answers, by every weight of the peer; torch raises where one of them is not used."""
    named = chain(peer.named_parameters(), peer.named_buffers())
    leaves = {name: tensor for name, tensor in named if tensor.requires_grad}
    weighting = torch.randn_like(theirs) / theirs.shape[0] ** 0.5  # as large for many rows as for one
    (mine * weighting).sum().backward()
    expected = torch.autograd.grad((theirs * weighting).sum(), list(leaves.values()))
    came = torch.autograd.grad(list(source.values()), list(leaves.values()), [parameter.grad for parameter in source])
    for name, one, other in zip(leaves, came, expected, strict=True):
        assert_equal_but_rounding(one, other, f"gradient of {name}")
