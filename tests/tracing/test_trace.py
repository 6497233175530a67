"""Every model there is, traced: what is rebuilt is what the kernels gave, and tracing changes nothing."""

import html
import math
import re

import pytest
import torch

from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.errors import OptionError, PlaceError, TraceError
from clearhead.model import presets
from clearhead.model.outputs import Classes
from clearhead.tracing import site as tracing_site
from clearhead.tracing import trace as tracing_trace
from clearhead.tracing.decoding import trace_decoding
from clearhead.tracing.names import sides_of
from clearhead.tracing.recording import recording
from clearhead.tracing.site import MATRICES
from clearhead.tracing.trace import make_trace, trace_model
from tests.covering import few
from tests.decoding.models import VOCABULARY, build, models
from tests.model.small import both_spec, built, decoder_spec, encoder_spec, words
from tests.rounding import assert_equal_but_rounding

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


def translated():
    return trace_model(built(both_spec()), words(1, 7), words(1, 5))


def cells(figure):
    """Return what the tooltips of a map say: (row, column) and the weight, None where it is masked."""
    found = re.findall(r"<title>(.*?) → (.*?): ([\d.]+%|masked)</title>", figure)
    return [(row, column, None if told == "masked" else float(told[:-1]) / 100) for row, column, told in found]


def check_map(figure, head):
    allowed, weight = head.allowed(0, head.site.n_query), head.weight
    told = [share for _, _, share in cells(figure)]
    assert [share is None for share in told] == (~allowed).flatten().tolist()
    assert [share or 0.0 for share in told] == pytest.approx(weight.flatten().tolist(), abs=1e-6)


def test_a_trace_shows_its_text_its_answers_and_one_map():
    trace = translated()
    shown = trace._repr_html_()
    for side in trace.sides.values():
        assert all(f">{token}</bdi>" in shown for token in side.tokens)
    for answers in trace.candidates:
        assert f"{answers[0].text} {math.exp(answers[0].log_prob):.1%}" in shown
    [figure] = re.findall(r"<figure>.*?</figure>", shown)
    index = int(re.search(r"decoder\.1\.cross, head (\d) of 3", figure)[1])
    check_map(figure, trace["decoder.1.cross"].head[index])
    sharpest = torch.stack([head.weight.amax(-1).mean() for head in trace["decoder.1.cross"].head]).argmax()
    assert index == sharpest


def test_print_says_what_was_read_and_answered():
    trace = translated()
    first, *lines = str(trace).splitlines()
    assert first == repr(trace)
    assert lines[0] == "  source  " + " ".join(trace.sides["encoder"].tokens)
    assert lines[1] == "  target  " + " ".join(trace.sides["decoder"].tokens)
    best = [answers[0] for answers in trace.candidates]
    assert lines[2] == "  answers " + " ".join(f"{one.text} {math.exp(one.log_prob):.0%}" for one in best)
    long = str(trace_model(built(decoder_spec()), words(1, 100))).splitlines()
    assert long[1].startswith("  text    … ")
    assert max(map(len, long)) < 300


def test_a_classifier_has_one_answer():
    spec = both_spec().encoder
    trace = trace_model(built(spec.__class__(**{**vars(spec), "output": Classes(3)})), words(1, 6))
    assert str(trace).splitlines()[-1].count("%") == 1
    assert "The likeliest answers</p>" in trace._repr_html_()
    assert ">answer</text>" in trace._repr_html_()


def test_every_weight_of_every_head_is_in_show():
    trace = translated()
    shown = trace.show()._repr_html_()
    sections = re.findall(r"<details.*?<summary>(.*?)</summary>(.*?)</details>", shown)
    assert [name for name, _ in sections] == list(trace.sites)
    for name, section in sections:
        for figure, head in zip(re.findall(r"<figure>.*?</figure>", section), trace[name].head, strict=True):
            check_map(figure, head)
    assert shown.count("<details open") == 1


def test_a_site_shows_its_heads_and_a_head_itself():
    shown = translated().decoder[0].attention
    assert len(re.findall("<figure>", shown._repr_html_())) == 3
    [figure] = re.findall(r"<figure>.*?</figure>", shown.head[2]._repr_html_())
    check_map(figure, shown.head[2])
    assert shown.head[2].show().title == "decoder.0.attention, head 2: 5 queries x 5 keys"


def test_nothing_in_it_runs_or_is_loaded():
    shown = translated().show()._repr_html_()
    assert not re.search(r"<script|<iframe|@import|url\(|src=|on\w+=", shown)
    assert set(re.findall(r"https?://[\w./]+", shown)) == {"http://www.w3.org/2000/svg"}


def test_tokens_are_escaped():
    evil = ['</script><script>alert("x")</script>', "\"'>&amp;", "ثلاثة", "", "東京"]
    trace = trace_model(built(decoder_spec()), words(1, 5), pieces={"decoder": evil})
    shown = trace.show()._repr_html_()
    assert "<script" not in shown
    assert html.escape(evil[0]) in shown
    assert "∅" in shown


def test_a_long_text_is_pooled_and_says_so(monkeypatch):
    trace = trace_model(built(decoder_spec()), words(1, 100))
    monkeypatch.setattr(tracing_site, "SIDE", 50)
    matrix = trace.decoder[0].attention.head[0].matrix("head 0", 50)
    blocks = trace.decoder[0].attention.head[0].weight.unflatten(0, (50, 2)).unflatten(2, (50, 2)).amax((1, 3))
    seen = ~matrix.values.isnan()
    assert_equal_but_rounding(matrix.values[seen], blocks[seen])
    assert "each cell the largest of 2 × 2" in trace.decoder[0].attention.head[0]._repr_html_()
    assert "at the last 24 of 100 places" in trace._repr_html_()


def test_what_is_not_quick_is_left_out_and_named(monkeypatch):
    trace = trace_model(built(decoder_spec()), words(1, 100))
    monkeypatch.setattr(tracing_trace, "WEIGHTS", 3 * 100 * 100)
    shown = trace.show()._repr_html_()
    assert re.findall(r"<summary>(.*?)</summary>", shown) == ["decoder.1.attention"]
    assert "1 more of its 2 attentions are left out: trace.show(site=NAME) shows one" in shown


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"site": "decoder.9.cross"}, "there is no attention called 'decoder.9.cross'"),
        ({"site": "decoder.1.cross", "head": 3}, "there is no head 3; there are 3"),
        ({"head": 1}, r"show\(head=1\) needs a site: one of encoder.0.attention"),
    ],
)
def test_what_is_not_there_is_refused(asked, reason):
    with pytest.raises(OptionError, match=reason):
        translated().show(**asked)
