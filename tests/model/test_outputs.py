"""The wide part: a linear model on n-grams of tokens beside the Transformer of a classifier."""

import math
from dataclasses import replace

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.model.int8 import count_weights
from clearhead.model.outputs import Classes, NgramLogits, hash_ngrams
from clearhead.model.presets import Size
from clearhead.model.sizes import spec_from_json, spec_to_json
from clearhead.taps import watching
from clearhead.training.tasks.learning import encoder

NGRAMS = NgramLogits(pairs=30, triples=20, buckets=50)
LENGTHS = torch.tensor([6, 3, 1])


def filled(part, seed=0):
    draw = torch.Generator().manual_seed(seed)
    for name, one in part.named_buffers():
        if name.startswith("slots"):
            one.copy_(torch.randint(len(part.get_buffer(name.replace("slots", "table"))), one.shape, generator=draw))
        else:
            one.copy_(torch.rand(one.shape, generator=draw))
    return part


@pytest.fixture
def tokens():
    return torch.randint(20, (3, 6), generator=torch.Generator().manual_seed(1))


def spec(ngrams=NGRAMS):
    return replace(encoder(Size(1, 16, 2, 2, 32), Classes(4, pool="mean", ngrams=ngrams), 0.1), vocabulary=20)


def hashed(*ids):
    key = 0
    for one in ids:
        key = (key * 1_000_003 + one + 1) % 2_147_483_647
    return key % 50


def test_logits_are_sums_over_ngrams_by_the_root_of_their_squares(tokens):
    part = filled(NGRAMS.build(20, 4))
    tokens[0, 3:5] = tokens[0, :2]  # a token and a pair that occur twice
    found = part(tokens, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        ids = tokens[row, :length].tolist()
        pairs, triples = ([hashed(*ids[i : i + n]) for i in range(length - n + 1)] for n in (2, 3))
        expected = part.bias.clone()
        for name, keys in (("token", ids), ("pair", pairs), ("triple", triples), ("letters", ids)):
            table, square = part.get_buffer(f"table_{name}"), part.get_buffer(f"square_{name}")
            slots = dict(part.named_buffers()).get(f"slots_{name}", torch.arange(20))
            counts = {key: 1 + math.log(keys.count(key)) for key in keys}
            if counts:
                norm = math.sqrt(sum(square[slots[key]] * count**2 for key, count in counts.items()))
                expected += sum(table[slots[key]] * count for key, count in counts.items()) / norm
        torch.testing.assert_close(found[row], expected)


def test_padding_and_neighbours_in_the_batch_do_not_count(tokens):
    part = filled(NGRAMS.build(20, 4))
    other = tokens.clone()
    other[1, 3:], other[0] = 7, 5
    assert torch.equal(part(tokens, LENGTHS)[1:], part(other, LENGTHS)[1:])
    torch.testing.assert_close(part(tokens[1:2, :3], None), part(tokens, LENGTHS)[1:2])


def test_both_parts_are_added_and_training_is_the_transformer_alone(tokens):
    model, seen = spec().build().eval(), {}
    filled(model.output.wide)
    with watching(model, seen.setdefault):
        logits = model(tokens, lengths=LENGTHS)
    of_deep, of_wide = model.output.wide.shares
    assert torch.equal(logits, seen["output.deep"] * of_deep + seen["output.wide_logits"] * of_wide)
    assert torch.equal(seen["output.wide_logits"], seen["output.wide.logits"])
    plain = spec(None).build().eval()
    plain.load_state_dict({name: one for name, one in model.state_dict().items() if ".wide." not in name})
    assert torch.equal(seen["output.deep"], plain(tokens, lengths=LENGTHS))
    torch.manual_seed(3)
    trained = model.train()(tokens, lengths=LENGTHS)
    torch.manual_seed(3)
    assert torch.equal(trained, plain.train()(tokens, lengths=LENGTHS))


def test_a_spec_with_it_is_saved():
    assert spec_from_json(spec_to_json(spec())) == spec()


def test_no_gradient_and_no_optimiser_knows_of_it():
    model = spec().build()
    assert not [name for name, _ in model.named_parameters() if "wide" in name]
    assert sum("wide" in name for name in model.state_dict()) == 12


def test_its_tables_count_as_parameters():
    """A model of 1.2 M parameters had 8 M more in tables that nobody counted."""
    tables = (20 + 31 + 21 + 20) * (4 + 1) + 4 + 2
    assert count_weights(spec().build()) - count_weights(spec(None).build()) == tables


@pytest.mark.parametrize("wrong", [{"buckets": 0}, {"pairs": -1}, {"triples": -1}])
def test_odd_values_are_refused(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        NgramLogits(**wrong)


@pytest.mark.parametrize("order", [2, 3])
def test_ngrams_are_spread_over_the_buckets_and_know_their_order(order):
    tokens = torch.randint(30_000, (4000, order), generator=torch.Generator().manual_seed(2))
    rows = hash_ngrams(tokens, order, 1 << 16)[:, -1]
    assert rows.min() >= 0
    assert rows.max() < 1 << 16
    assert len(rows.unique()) > 3800
    assert (rows == hash_ngrams(tokens.flip(1), order, 1 << 16)[:, -1]).sum() < 10
