"""A size by the name of a preset, or by a number of parameters: `sized` comes near any number, and takes no memory.

Models that are built for their shapes alone.
"""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from clearhead import SlicedHeads
from clearhead.attention.weighting import Argmax
from clearhead.errors import OptionError
from clearhead.model import presets, sizes
from clearhead.model.presets import Size
from clearhead.model.sizes import (
    KINDS,
    PRESETS,
    SMALL,
    Bounded,
    TooManyNumbers,
    build_for_shapes,
    named,
    parse_count,
    sized,
)
from tests.model.test_presets import parameters
from tests.model.test_spec_json import SPECS

HUGE = ("bert-large", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-1b", "llama-7b")


@pytest.mark.parametrize(
    "name", [name if name not in HUGE else pytest.param(name, marks=pytest.mark.thorough) for name in PRESETS]
)
@pytest.mark.slow
def test_every_preset_has_a_name_and_takes_a_vocabulary(name):
    smaller, usual = parameters(named(name, 1000)), parameters(named(name))
    tables = 1 if name in ("tiny", "base", "big") or "bert" in name or "gpt2" in name else 2
    spec = named(name)
    width = spec.decoder.d_model if len(spec.stacks) > 1 else spec.d_model
    bias = 1 if "bert" in name else 0  # BERT's output has a bias for each token.
    assert usual - smaller == (PRESETS[name].vocabulary - 1000) * (tables * width + bias)


def test_a_bare_family_name_is_its_usual_size():
    assert named("gpt2") == named("gpt2-small")
    assert named("bert") == named("bert-base")
    assert named("llama") == named("llama-110m")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: presets.gpt2("huge"), r"no GPT-2 of size 'huge'; there are tiny, small.*give a Size"),
        (lambda: presets.bert("huge"), r"no BERT of size 'huge'; there are tiny, mini"),
        (lambda: presets.llama("huge"), r"no Llama of size 'huge'; there are tiny, 15m"),
        (lambda: named("gpt3"), r"no preset 'gpt3'; there are tiny, base, big, gpt2, gpt2-tiny"),
        (lambda: named("base", 0), r"vocabulary must be 1 or more; came 0"),
        (lambda: sized("both", 10**6, 100), r"no kind 'both'; there are encoder-decoder, decoder, encoder"),
        (lambda: sized("decoder", 10**6, 0), r"vocabulary must be 1 or more; came 0"),
        (lambda: sized("decoder", 10**14, 100), r"100,000,000,000,000 parameters are too many"),
    ],
)
def test_what_there_is_not_is_told(make, said):
    with pytest.raises(OptionError, match=said):
        make()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("300k", 300_000),
        ("10M", 10_000_000),
        ("10m", 10_000_000),
        ("1.5B", 1_500_000_000),
        (" 2_000_000 ", 2_000_000),
        ("7", 7),
        ("0.5k", 500),
        ("1.1B", 1_100_000_000),
        ("2T", 2 * 10**12),
    ],
)
def test_a_number_of_parameters_is_read_as_people_write_it(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "M", "ten", "10X", "10MB", "-5M", "1e6", "1,000", "1__0", "_1", "0", "0.0001k", "nan"]
)
def test_what_is_no_number_of_parameters_is_told(text):
    with pytest.raises(OptionError, match=r"is no number of parameters; write 300k, 10M, 1.5B or 2_000_000"):
        parse_count(text)


def shape_of(spec):
    """One number for each thing a size consists of."""
    stack = spec.decoder if len(spec.stacks) > 1 else spec
    block = stack.blocks[0]
    return Size(
        len(stack.blocks),
        stack.d_model,
        block.attention.heads.count,
        block.attention.heads.kv,
        block.feed_forward.d_ff,
    )


# Close together where rungs are far apart, up to 10 billion.
ASKED = [round(10 ** (5 + step / 60)) for step in range(60)] + [round(10 ** (6 + step / 4)) for step in range(17)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", [100, 1000, 8000, 32_000, 100_000, 250_000])
@pytest.mark.slow
@pytest.mark.pairs(1)
def test_a_size_is_met_within_ten_percent(kind, vocabulary):
    asked = [wanted for wanted in ASKED if wanted >= 96 * vocabulary]
    given = [sizes.count(kind, shape_of(sized(kind, wanted, vocabulary)), vocabulary) for wanted in asked]
    assert {wanted: made for wanted, made in zip(asked, given, strict=True) if abs(made / wanted - 1) > 0.1} == {}
    assert given == sorted(given)  # asking for more never gives less


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("wanted", "vocabulary"), [(10**5, 100), (3 * 10**6, 8000), (10**8, 32_000), (10**10, 250_000)]
)
@pytest.mark.slow
@pytest.mark.pairs(1)
def test_the_count_of_a_size_is_that_of_the_whole_model(kind, wanted, vocabulary):
    spec = sized(kind, wanted, vocabulary)
    assert parameters(spec) == sizes.count(kind, shape_of(spec), vocabulary)
    assert parameters(spec) == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_rungs_go_up_one_by_one(kind):
    for parameters_asked in (2 * 10**5, 5 * 10**6, 3 * 10**8):
        counts = [sizes.count(kind, size, 500) for size in sizes.ladder(kind, parameters_asked, 500)]
        assert counts == sorted(set(counts))
        assert counts[0] <= parameters_asked < counts[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exponent", [5, 7, 9])
def test_shapes_are_sensible(kind, exponent):
    spec = sized(kind, 10**exponent, 1000)
    n_layers, d_model, n_heads, n_kv_heads, d_ff = shape_of(spec)
    assert d_model % n_heads == 0
    assert d_model // n_heads == (64 if d_model >= 512 else 32 if d_model >= 128 else 16)
    assert n_kv_heads == n_heads
    full = KINDS[kind].widening * d_model
    assert 0.5 * full <= d_ff <= full + 32
    deep = math.sqrt(d_model) / 2 / KINDS[kind].n_stacks
    assert round(deep) <= n_layers <= 2 * round(deep) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_too_small_a_size_says_the_least(kind):
    with pytest.raises(OptionError, match=r"too few .* vocabulary of 50,000: the least is ([\d,]+); raise") as caught:
        sized(kind, 10_000, 50_000)
    least = int(str(caught.value).partition("the least is ")[2].partition(";")[0].replace(",", ""))
    assert parameters(sized(kind, least, 50_000)) == least
    with pytest.raises(OptionError, match="too few"):
        sized(kind, least - 1, 50_000)


def test_almost_no_memory_is_taken_for_a_size(monkeypatch):
    made = []
    build = torch.nn.Parameter.__new__

    def watched(cls, data=None, requires_grad=True):
        made.append(data.numel())
        return build(cls, data, requires_grad)

    monkeypatch.setattr(torch.nn.Parameter, "__new__", watched)
    sizes.growth_when_built.cache_clear()
    sized("decoder", 10**9, 1000)
    assert 0 < sum(made) < 10**6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_growth_is_that_of_models_as_wide(kind):
    """`growth` follows a polynomial through three narrow models; a wider one lies on it."""
    for width in (16, 80, 128, 256):
        assert sizes.growth(kind, width) == sizes.growth_when_built(kind, width)


@pytest.mark.parametrize("kind", sizes.KINDS)
@pytest.mark.parametrize(
    ("wanted", "vocabulary"), [(200_000, 64), (200_000, 1_000), (1_000_000, 261), (3 * 10**6, 8_000)]
)
def test_a_model_is_resized_for_the_vocabulary_it_gets(kind, wanted, vocabulary):
    """Sized for another vocabulary first, as before a tokeniser is trained; with parts of its own, which stay."""
    spec = sized(kind, 2_000_000, 5_000)
    if kind == "encoder-decoder":
        fitted = replace(
            spec,
            encoder=replace(spec.encoder, vocabulary=vocabulary),
            decoder=replace(spec.decoder, vocabulary=vocabulary),
        )
    else:
        fitted = replace(spec, vocabulary=vocabulary)
    made = sizes.resized(fitted, wanted)
    assert made == sized(kind, wanted, vocabulary)
    assert parameters(made) == pytest.approx(wanted, rel=0.1)


def test_a_resized_model_keeps_its_parts():
    spec = sized("decoder", 2_000_000, 5_000)
    slot = replace(spec.blocks[0].attention, weighting=Argmax(), heads=SlicedHeads(4, value_rank=3))
    changed = replace(spec, vocabulary=100, blocks=(replace(spec.blocks[0], attention=slot),) * len(spec.blocks))
    made, plain = sizes.resized(changed, 200_000), sized("decoder", 200_000, 100)
    assert made.d_model == plain.d_model
    assert len(made.blocks) == len(plain.blocks)
    assert made.blocks[0].attention.weighting == Argmax()
    assert made.blocks[0].attention.heads == SlicedHeads(plain.blocks[0].attention.heads.count, value_rank=3)


@pytest.mark.parametrize("tied", ["two", "none"])
def test_tables_that_are_not_shared_are_counted_apart(tied):
    spec = replace(sized("encoder-decoder", 10**6, 300), tied=tied)
    spec = replace(spec, encoder=replace(spec.encoder, vocabulary=2_000), decoder=replace(spec.decoder, vocabulary=700))
    assert parameters(sizes.resized(spec, 10**6)) == pytest.approx(10**6, rel=0.1)


BUILDABLE = [spec for spec in SPECS if getattr(spec, "d_model", 99) == 8 and spec.blocks]
BUILD = """
import sys
import torch
from clearhead.model.sizes import build_for_shapes
from clearhead.model.sizes import sized
from clearhead.training.recipe import Optimizer
from clearhead.training.optimizers import make_optimizer
from tests.training.test_weights import GPT, check_shapes, header_of

for kind in ("encoder", "decoder", "encoder-decoder"):
    build_for_shapes(sized(kind, 100_000, vocabulary=50))
    build_for_shapes(sized(kind, 30_000_000, vocabulary=50))
    sized(kind, 10**10, vocabulary=50_000)
check_shapes(GPT, header_of(GPT), "w")
model = GPT.build()
optimizer = make_optimizer(model, list(model.parameters()), Optimizer(), torch.device("cpu"))
model(torch.zeros(1, 3, dtype=torch.int64)).sum().backward()
optimizer.step()
print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
"""


@pytest.mark.parametrize("spec", [*BUILDABLE, presets.tiny(vocabulary=20)], ids=lambda spec: type(spec).__name__)
def test_it_has_the_tensors_of_the_model_and_draws_no_number_from_the_caller(spec):
    before = torch.get_rng_state()
    found = build_for_shapes(spec).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    built = spec.build().state_dict()
    assert {name: (one.shape, one.dtype) for name, one in found.items()} == {
        name: (one.shape, one.dtype) for name, one in built.items()
    }


@pytest.mark.slow
def test_a_large_one_is_built_on_the_meta_device():
    assert {one.device.type for one in build_for_shapes(presets.gpt2("tiny", vocabulary=50)).parameters()} == {"cpu"}
    assert {one.device.type for one in build_for_shapes(presets.gpt2("small")).parameters()} == {"meta"}


@pytest.mark.parametrize("make", [torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn])
def test_more_numbers_than_allowed_are_refused_before_they_are_made(make):
    with Bounded(20):
        assert make(4, 5).shape == make((0, 5)).T.new_empty(4, 5).shape
        with pytest.raises(TooManyNumbers):
            make(1)
    with Bounded(SMALL), pytest.raises(TooManyNumbers):
        make((10**6, 10**6))
    with Bounded(SMALL), pytest.raises(TooManyNumbers):
        make(size=(10**6, 10**6))


@pytest.mark.slow
def test_sizes_checks_of_files_and_steps_of_training_import_no_compiler():
    """It would take two seconds of every command."""
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
