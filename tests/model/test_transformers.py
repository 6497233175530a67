"""Laws of whole models: any part in any slot, no look ahead, no heed of padding, dropout in training alone."""

from dataclasses import replace

import pytest
import torch

import clearhead as ch
from clearhead.errors import DtypeError, OptionError, ShapeError
from clearhead.model import presets
from clearhead.model.arrangements import PostNorm
from clearhead.model.blocks import AttentionSpec
from clearhead.model.embedding import Embedding
from clearhead.model.feedforward import ReLU, SwiGLU
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.outputs import Blanks, Classes, NextToken
from clearhead.model.transformers import check_tokens
from tests.model.small import MEMORY, WORDS, D, N, block_spec, both_spec, built, decoder_spec, encoder_spec, words
from tests.rounding import assert_equal_but_rounding

TABLES = {
    "similarity": [name for name in ch.similarity.TABLE if name != "scaled dot"],
    "weighting": list(ch.weighting.TABLE),
    "position": list(ch.positions.TABLE),
}
PARTS = [(axis, name) for axis, names in TABLES.items() for name in names]


def part(axis, name):
    return {"similarity": ch.similarity, "weighting": ch.weighting, "position": ch.positions}[axis].TABLE[name]


@pytest.mark.parametrize("slot", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize(("axis", "name"), PARTS)
@pytest.mark.slow
@pytest.mark.pairs(1)
def test_any_part_in_any_slot_is_what_the_reference_says(axis, name, slot):
    plain, special = AttentionSpec(heads=3), AttentionSpec(heads=3, **{axis: part(axis, name)})
    chosen = {each: special if each == slot else plain for each in ("encoder", "decoder", "cross")}

    def made(kernel):
        torch.manual_seed(0)
        own, crossed = (replace(chosen[each], kernel=kernel) for each in ("decoder", "cross"))
        model = both_spec(
            encoder=encoder_spec(blocks=(block_spec(attention=replace(chosen["encoder"], kernel=kernel)),) * 2),
            decoder=decoder_spec(blocks=(block_spec(attention=own, cross=crossed),) * 2),
        )
        return model.build().double()

    source, target, lengths = words(n=7), words(), torch.tensor([7, 4])
    got, wanted = (made(kernel)(source, target, source_lengths=lengths) for kernel in ("auto", "reference"))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    if name not in ("none", "softmax"):
        usual = both_spec().build().double()
        usual.load_state_dict(made("auto").state_dict(), strict=False)
        assert not torch.allclose(usual(source, target, source_lengths=lengths), wanted)  # the part is really in it


@pytest.mark.parametrize(("axis", "name"), PARTS)
def test_a_decoder_never_sees_the_future(axis, name):
    spec = decoder_spec(blocks=(block_spec(attention=AttentionSpec(heads=3, **{axis: part(axis, name)})),) * 2)
    model, tokens, changed = built(spec), words(n=9), 5
    other = tokens.clone()
    other[:, changed] = (tokens[:, changed] + 1) % WORDS
    before, after = model(tokens), model(other)
    torch.testing.assert_close(after[:, :changed], before[:, :changed], rtol=0, atol=1e-12)
    assert (after[:, changed] - before[:, changed]).abs().amax(-1).min() > 1e-6


@pytest.mark.parametrize("mask", [ch.masks.window(2), ch.masks.window(2, 2), ch.masks.prefix(4)], ids=str)
def test_a_blocks_own_mask_stands_beside_the_causal_one(mask):
    model, tokens = built(decoder_spec(blocks=(block_spec(attention=AttentionSpec(heads=3, mask=mask)),))), words(n=9)
    seen = (ch.masks.show(mask & ch.masks.causal(), n_query=9, n_key=9)[0]).tolist()
    for changed in range(9):
        other = tokens.clone()
        other[:, changed] = (tokens[:, changed] + 1) % WORDS
        moved = (model(other) - model(tokens)).abs().amax((0, 2)) > 1e-9
        assert moved.tolist() == [row[changed] for row in seen]


def test_an_encoder_decoder_sees_all_of_the_source_and_nothing_of_the_future():
    model, source, target = built(both_spec()), words(n=7), words()
    before, other = model(source, target), target.clone()
    other[:, 3] = (target[:, 3] + 1) % WORDS
    torch.testing.assert_close(model(source, other)[:, :3], before[:, :3], rtol=0, atol=1e-12)
    for place in range(7):
        changed = source.clone()
        changed[:, place] = (source[:, place] + 1) % WORDS
        assert (model(changed, target) - before).abs().amax(-1).min() > 1e-9


@pytest.mark.parametrize("name", ch.weighting.TABLE)
def test_padding_does_not_matter_to_an_encoder(name):
    weighting = ch.weighting.TABLE[name]
    model = built(encoder_spec(blocks=(block_spec(attention=AttentionSpec(heads=3, weighting=weighting)),) * 2))
    tokens, lengths = words(2, 9), torch.tensor([9, 4])
    wanted = model(tokens, lengths=lengths)
    other = tokens.clone()
    other[1, 4:] = (tokens[1, 4:] + 1) % WORDS
    torch.testing.assert_close(model(other, lengths=lengths)[1, :4], wanted[1, :4], rtol=0, atol=1e-12)
    torch.testing.assert_close(model(tokens[1:, :4])[0], wanted[1, :4], rtol=0, atol=1e-12)
    assert not torch.allclose(model(other)[1, :4], wanted[1, :4])  # without lengths it does matter


def test_padding_of_the_source_does_not_matter_to_a_decoder():
    model, source, target = built(both_spec()), words(2, 9), words()
    lengths = torch.tensor([9, 4])
    wanted = model(source, target, source_lengths=lengths)
    other = source.clone()
    other[1, 4:] = (source[1, 4:] + 1) % WORDS
    torch.testing.assert_close(model(other, target, source_lengths=lengths), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(source[1:, :4], target[1:]), wanted[1:], rtol=0, atol=1e-12)


def test_a_mask_of_the_call_goes_beside_the_blocks_own():
    model, tokens = built(decoder_spec(embedding=Embedding(position=None))), words(1, 6)
    packed = model(tokens, mask=ch.masks.document([0, 0, 0, 1, 1, 1]))
    alone = torch.cat([model(tokens[:, :3]), model(tokens[:, 3:])], 1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)


def test_a_word_means_what_its_sentence_makes_of_it():
    model = built(encoder_spec())
    one, other = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 2, 5]])
    torch.testing.assert_close(model.embedding(one)[0, 1], model.embedding(other)[0, 1], rtol=0, atol=0)
    assert (model(one)[0, 1] - model(other)[0, 1]).abs().max() > 1e-3


DROPOUTS = {
    "attention": lambda rate: {"blocks": (block_spec(attention=AttentionSpec(heads=3, dropout=rate)),)},
    "residual": lambda rate: {"blocks": (block_spec(dropout=rate),)},
    "post-norm residual": lambda rate: {"blocks": (block_spec(dropout=rate, arrangement=PostNorm()),)},
    "embedding": lambda rate: {"embedding": Embedding(dropout=rate)},
}


@pytest.mark.parametrize("place", DROPOUTS)
def test_dropout_acts_in_training_alone(place):
    model, none, tokens = (
        encoder_spec(**DROPOUTS[place](0.5)).build(),
        encoder_spec(**DROPOUTS[place](0.0)).build(),
        words(),
    )
    none.load_state_dict(model.state_dict())
    assert not torch.equal(model(tokens), model(tokens))
    assert torch.equal(none(tokens), none(tokens))
    assert_equal_but_rounding(model.eval()(tokens), none(tokens))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: encoder_spec(blocks=(block_spec(cross=AttentionSpec(heads=3)),)), "nothing to cross-attend to"),
        (lambda: encoder_spec(output=NextToken()), "an encoder sees the next token, so it cannot predict it"),
        (lambda: both_spec(encoder=encoder_spec(d_model=24)), "must have one d_model; came 24 and 12"),
        (lambda: both_spec(encoder=encoder_spec(vocabulary=5)), r"came 5 and 13. Share it, or choose tied='two'"),
        (lambda: both_spec(encoder=encoder_spec(output=Blanks())), r"gives vectors: leave its output out \(None\)"),
        (lambda: both_spec(decoder=decoder_spec()), "every decoder block must cross-attend to the encoder"),
        (lambda: decoder_spec(blocks=()).build(), "a stack needs at least one block"),
        (lambda: block_spec(dropout=1.0), "dropout is the share"),
        (lambda: Embedding(dropout=-0.1), "dropout is the share"),
        (lambda: ReLU(0), "ReLU: d_ff must be 1 or more; came 0"),
        (lambda: SwiGLU(-1), "SwiGLU: d_ff must be 1 or more; came -1"),
        (lambda: Classes(0), "count must be 1 or more; came 0"),
        (lambda: LayerNorm(-1.0), "LayerNorm: epsilon must be 0 or more; came -1"),
        (lambda: RMSNorm(float("nan")), "RMSNorm: epsilon must be 0 or more; came nan"),
        (lambda: encoder_spec(vocabulary=0).build(), "must be 1 or more; came 0 and 12"),
        (lambda: encoder_spec(d_model=10).build(), "3 heads do not divide d_model = 10"),
        (
            lambda: AttentionSpec(heads=ch.Heads(3, d_value=5, output=False)).build(D),
            r"must give back d_model = 12 numbers, and these heads give 15.*keep W_O",
        ),
    ],
)  # fmt: skip
def test_wrong_specs_say_what_is_wrong(make, said):
    with pytest.raises(OptionError, match=said):
        make()


def test_a_decoder_that_crosses_needs_a_memory():
    model = decoder_spec(blocks=(block_spec(cross=AttentionSpec(heads=3)),)).build()
    with pytest.raises(OptionError, match=r"was given nothing to attend to: pass memory="):
        model(words())
    assert model(words(), memory=torch.randn(2, MEMORY, D)).shape == (2, N, WORDS)


def test_two_vocabularies_need_two_tables():
    model = both_spec(encoder=encoder_spec(vocabulary=5), tied="two").build()
    assert model(torch.randint(5, (2, 7)), words()).shape == (2, N, WORDS)


# What a whole model says of these is tested in tests/plain, where nothing else looks at them first.
@pytest.mark.parametrize(
    ("tokens", "error", "said"),
    [
        (torch.zeros(3, dtype=torch.long), ShapeError, r"expected a tensor \(batch, n\) of token ids.*; came \(3,\)"),
        (torch.zeros(2, 0, dtype=torch.long), ShapeError, r"came \(2, 0\)"),
        (torch.zeros(1, 2, 3, dtype=torch.long), ShapeError, r"came \(1, 2, 3\)"),
        (torch.zeros(2, 3), DtypeError, "token ids are int64 or int32; came torch.float32"),
        (torch.zeros(2, 3, dtype=torch.bool), DtypeError, "came torch.bool"),
        (torch.tensor([[0, 12, 13]]), OptionError, "ids go from 0 to 12 in this vocabulary; there is 13"),
        (torch.tensor([[0, -1, 12]]), OptionError, "ids go from 0 to 12 in this vocabulary; there is -1"),
    ],
)  # fmt: skip
def test_wrong_tokens_are_told(tokens, error, said):
    with pytest.raises(error, match=said):
        check_tokens("tokens", tokens, WORDS)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_both_kinds_of_ids_serve(dtype):
    model, tokens = built(decoder_spec()), words()
    torch.testing.assert_close(model(tokens.to(dtype)), model(tokens))


def test_both_embeddings_may_share_a_table_that_the_output_has_not():
    spec = replace(presets.tiny(vocabulary=20), tied="embeddings")
    model = spec.build()
    assert model.encoder.embedding.table is model.decoder.embedding.table
    assert model.decoder.output.table is not model.decoder.embedding.table
    assert (
        sum(p.numel() for p in model.parameters())
        - sum(p.numel() for p in presets.tiny(vocabulary=20).build().parameters())
        == model.decoder.output.table.numel()
    )
    with pytest.raises(OptionError, match="one table for source and target needs one vocabulary"):
        replace(spec, decoder=replace(spec.decoder, vocabulary=21))


@pytest.mark.parametrize(
    ("spec", "kind", "names"),
    [
        (encoder_spec(), "encoder", ["encoder"]),
        (decoder_spec(), "decoder", ["decoder"]),
        (both_spec(), "encoder-decoder", ["encoder", "decoder"]),
    ],
)
def test_a_model_and_its_spec_name_their_stacks(spec, kind, names):
    model = spec.build()
    assert spec.kind == kind
    assert [stack.kind for stack in spec.stacks] == [stack.spec.kind for stack in model.stacks] == names
    for named in (spec, model):
        parts = {"encoder": named.encoder, "decoder": named.decoder}
        assert [name for name, part in parts.items() if part is not None] == names
        assert [parts[name] for name in names] == list(named.stacks)
        assert len(names) == 2 or named.stacks == (named,)


def test_a_table_for_each_vocabulary_takes_more_rows():
    rows = {tied: both_spec(tied=tied).table_rows for tied in ("three", "embeddings", "two", "none")}
    assert rows == {"three": WORDS, "embeddings": 2 * WORDS, "two": 2 * WORDS, "none": 3 * WORDS}
    assert both_spec(tied="three").with_own_tables().tied == "two"
    assert both_spec(tied="embeddings").with_own_tables().tied == "none"
    assert encoder_spec().with_own_tables() == encoder_spec()
