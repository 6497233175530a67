"""Every model there is, traced: what is rebuilt is what the kernels gave, and tracing changes nothing."""

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.errors import OptionError, PlaceError, TraceError
from clearhead.model import presets
from clearhead.tracing.decoding import trace_decoding
from clearhead.tracing.names import sides_of
from clearhead.tracing.recording import recording
from clearhead.tracing.site import MATRICES
from clearhead.tracing.trace import make_trace, trace_model
from tests.covering import few
from tests.decoding.models import VOCABULARY, build, models
from tests.model.small import both_spec, built, decoder_spec, encoder_spec, words

N, SOURCE = 9, 7
MODELS = models()
SOME = MODELS[:: len(MODELS) // 50]


def rows(batch=1, n=N):
    return torch.randint(VOCABULARY, (batch, n))


def inputs(model, batch=1):
    return [rows(batch, SOURCE), rows(batch)] if len(model.stacks) > 1 else [rows(batch)]


def check_every_head(trace):
    """Asking for the rows checks their context against the kernel's; the matrices must fit together besides."""
    for site in trace.sites.values():
        for head in site.head:
            steps = head.rows()
            assert steps.weight.shape == (site.n_query, site.n_key)
            torch.testing.assert_close(
                steps.weight @ steps.value, head.context.to(steps.value.dtype), rtol=0, atol=3e-5
            )


@pytest.mark.parametrize("choices", few(MODELS, 40), ids=str)
def test_what_is_rebuilt_is_what_ran_and_outputs_are_the_same_bits(choices):
    model = build(choices)
    given = inputs(model)
    with torch.inference_mode():
        plain = model(*given)
        with recording(model) as record:
            traced = model(*given)
    assert torch.equal(plain, traced)
    check_every_head(make_trace(model, record, ids_of(model, given)))


def ids_of(model, given):
    sides = ("encoder", "decoder") if len(model.stacks) > 1 else ("decoder",)
    return {side: tokens[0].tolist() for side, tokens in zip(sides, given, strict=True)}


@pytest.mark.parametrize("choices", few(SOME, 6), ids=str)
@pytest.mark.parametrize("method", [Greedy(), Beam(width=3, n_best=3)], ids=["greedy", "beam"])
@pytest.mark.pairs(1)
@pytest.mark.slow
def test_each_output_of_cached_decoding_has_its_own_history(choices, method):
    model = build(choices)
    rules = Rules(max_new=6, end=(2,))
    translates = len(model.stacks) > 1
    source, prefix = rows(1, SOURCE)[0].tolist(), [3, 4]
    given = {"inputs": [source if translates else prefix], "prefix": [prefix] if translates else None}
    wanted = generate(model, given["inputs"], method, rules=rules, prefix=given["prefix"])[0]
    found = trace_decoding(
        model, given["inputs"][0], method, rules=rules, prefix=given["prefix"][0] if translates else None
    )
    assert [one.hypothesis.tokens for one in found] == [one.tokens for one in wanted]
    for one in found:
        check_every_head(one.trace)
        read = [*prefix, *one.hypothesis.tokens[:-1]]
        assert one.trace.sides["decoder"].ids == read
        tokens = [torch.tensor([source])] * translates + [torch.tensor([read])]
        whole = trace_model(model, *tokens)
        for name, site in whole.sites.items():
            torch.testing.assert_close(one.trace[name].context, site.context, rtol=1e-4, atol=1e-4)
        for name in whole.names:
            torch.testing.assert_close(one.trace.value(name), whole.value(name), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", [encoder_spec(), decoder_spec(), both_spec()], ids=["encoder", "decoder", "both"])
def test_a_row_of_a_training_batch_with_padding_is_the_text_by_itself(spec):
    model = built(spec)
    lengths = torch.tensor([3, 5])
    given = [words(2, 5), words(2, 4)] if len(model.stacks) > 1 else [words(2, 5)]
    with recording(model) as record:
        if len(model.stacks) > 1:
            model(*given, source_lengths=lengths)
        else:
            model(*given, lengths=lengths)
    ids = [tokens[0].tolist() for tokens in given]
    names = ["encoder", "decoder"] if len(model.stacks) > 1 else [type(model).__name__.lower()]
    trace = make_trace(model, record, dict(zip(names, ids, strict=True)), row=0)
    alone = trace_model(model, *(tokens[:1, : (3 if i == 0 else 4)] for i, tokens in enumerate(given)))
    for name, site in alone.sites.items():
        for head, other in zip(trace[name].head, site.head, strict=True):
            n = other.weight.shape
            torch.testing.assert_close(head.weight[: n[0], : n[1]], other.weight)


def test_a_training_step_is_recorded_without_dropout_of_weights(seed):
    spec = decoder_spec(blocks=tuple(block for block in decoder_spec().blocks))
    model = built(spec).train()
    for block in model.stack.blocks:
        block.attention.dropout = 0.5
    tokens = words(2, 5)
    with recording(model) as record:
        loss = model(tokens).sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for row in range(2):
        check_every_head(make_trace(model, record, {"decoder": tokens[row].tolist()}, row=row))


def test_a_mismatch_is_an_error():
    model = built(decoder_spec())
    trace = trace_model(model, words(1))
    site = trace.sites["decoder.1.attention"]
    site.recorded_context = site.recorded_context.clone()
    site.recorded_context[2, 3, 1] += 1e-6
    assert trace.decoder[1].attention.head[2].rows(0, 3).weight.shape == (3, 5)
    with pytest.raises(TraceError, match=r"decoder\.1\.attention, head 2: the context rebuilt .* is off"):
        trace.decoder[1].attention.head[2].rows(3, 4)


def test_rows_and_tiles_are_parts_of_the_whole():
    model = built(both_spec())
    trace = trace_model(model, words(1, 7), words(1, 5))
    head = trace.decoder[0].cross.head[1]
    for step in MATRICES:
        whole = getattr(head.rows(), step)
        torch.testing.assert_close(getattr(head.rows(2, 4), step), whole[2:4])
        torch.testing.assert_close(head.tile(step, 0, 0, 0), whole)
        halves = head.tile(step, 1, 0, 0)
        assert halves.shape == (3, 4)
        assert halves[2, 3] == whole[4, 6]
        assert halves[0, 0] == whole[:2, :2].max()


@pytest.mark.parametrize("n", [1, 2, 255, 300])
def test_a_causal_tile_leaves_out_masked_keys_and_is_the_same(n):
    trace = trace_model(built(decoder_spec()), words(1, n))
    head = trace.decoder[0].attention.head[1]
    whole = head.weight
    assert head.seen_weights(0, 1).shape == (1, 1)
    torch.testing.assert_close(head.seen_weights(n // 2, n), whole[n // 2 :])
    for level in range(3):
        size, tile = 1 << level, 256 << level
        for row in range(-(-n // tile)):
            for column in range(-(-n // tile)):
                part = whole[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
                largest = torch.nn.functional.max_pool2d(part[None], size, ceil_mode=True)[0]
                torch.testing.assert_close(head.tile("weight", level, row, column), largest)


@pytest.mark.parametrize("spec", [decoder_spec, both_spec])
def test_a_trace_does_without_the_logits_of_the_whole_text(spec, monkeypatch):
    model = built(spec())
    given = [words(1, 7), words(1, 5)] if spec is both_spec else [words(1, 7)]
    with torch.inference_mode():
        logits = model(*given)
    sizes, output = [], list(sides_of(model).values())[-1][1].output
    forward = type(output).forward
    monkeypatch.setattr(
        type(output), "forward", lambda self, x, *rest: sizes.append(x.shape) or forward(self, x, *rest)
    )
    trace = trace_model(model, *given)
    assert sizes == []
    assert [row[0].id for row in trace.candidates] == logits[0].argmax(-1).tolist()
    with torch.inference_mode():
        assert torch.equal(model(*given), logits)


@pytest.mark.plain
def test_a_layer_or_a_head_that_is_not_there_says_how_many_there_are():
    made = trace_model(presets.tiny(vocabulary=20).build(), torch.tensor([[1, 2]]), torch.tensor([[3]]))
    for ask, message in (
        (lambda: made.decoder[7], "decoder: layer 7 is not there; there are 4, counted from 0"),
        (lambda: made.decoder["0"], "decoder: layer '0' is not there; there are 4"),
        (lambda: made.decoder[1].cross.head[9], r"decoder\.1\.cross: head 9 is not there; there are 4, counted"),
    ):
        with pytest.raises(PlaceError, match=message) as caught:
            ask()
        assert isinstance(caught.value, IndexError)
    assert len([layer for layer in made.decoder]) == len(list(reversed(made.decoder))) == 4  # noqa: C416
    assert [head.index for head in made.decoder[-1].cross.head] == [0, 1, 2, 3]
    assert [head.index for head in made.decoder[0].cross.head[1:3]] == [1, 2]


def test_a_name_that_is_not_there_is_answered_with_the_nearest():
    made = trace_model(presets.tiny(vocabulary=20).build(), torch.tensor([[1, 2]]), torch.tensor([[3]]))
    with pytest.raises(OptionError, match=r"'decoder\.logits' .*; the nearest is decoder\.output\.logits"):
        made.value("decoder.logits")
    with pytest.raises(OptionError, match=r"'decoder\.1\.cros' .*; the nearest is decoder\.1\.cross"):
        made["decoder.1.cros"]
