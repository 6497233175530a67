"""CTranslate2 computes what the run computes, for every arrangement it can express; the others are refused by name."""

import json
from dataclasses import replace

import pytest

from clearhead.attention import masks
from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.attention.positions import ALiBi, Learned, Rotary, T5Bias
from clearhead.attention.similarity import Cosine
from clearhead.attention.weighting import Argmax, Softmax
from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.errors import OptionError
from clearhead.interop.export import export
from clearhead.interop.export.ctranslate2 import CTranslate2
from clearhead.interop.export.ctranslate2_peer import open_with
from clearhead.interop.export.samples import token_names
from clearhead.interop.run import import_model
from clearhead.model import presets
from clearhead.model.arrangements import NoNorm, PreNorm, SingleResidualNorm
from clearhead.model.norms import LayerNorm
from clearhead.model.outputs import Classes, NgramLogits
from clearhead.model.presets import Size
from tests.interop.export.random_runs import CONTEXT, draw_spec, run_of
from tests.interop.saved_models import save
from tests.training import small_runs

FAMILIES = ("encoder-decoder", "decoder", "encoder")
SIZE = Size(2, 32, 4, 4, 48)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_it_computes_what_a_drawn_model_computes(family, seed, tmp_path):
    figures = export(run_of(draw_spec(family, seed), tmp_path), to="ctranslate2", path=tmp_path / "out").figures
    assert figures.difference < 1e-4
    assert figures.same == figures.outputs
    assert "drawn" in figures.texts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "roberta"])
def test_positions_that_begin_at_a_later_row_are_theirs_from_the_first(name, tmp_path):
    """The tables of BART and RoBERTa have two rows that no token of a text reads."""
    save(name, tmp_path / "theirs")
    run = import_model(tmp_path / "theirs", tmp_path / "run")
    figures = export(run, to="ctranslate2", path=tmp_path / "out").figures
    assert figures.difference < 1e-4
    assert figures.same == figures.outputs


def test_drawn_texts_fit_a_model_with_as_many_positions_as_its_context(tmp_path):
    """A source has an end behind it, a target a start before it."""
    spec = draw_spec("encoder-decoder", 10)
    assert spec.decoder.embedding.position == Learned(CONTEXT)
    assert export(run_of(spec, tmp_path), to="ctranslate2", path=tmp_path / "out").figures.difference < 1e-4


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_it_computes_what_many_drawn_models_compute(family, tmp_path):
    for seed in range(3, 60):
        run = run_of(draw_spec(family, seed), tmp_path)
        kind = ("float32", "int8")[seed % 2]
        assert export(run, to="ctranslate2", path=tmp_path / str(seed), quantization=kind).figures.difference < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_has_the_weights_rounded_and_nothing_else(family, tmp_path):
    run = run_of(draw_spec(family, 1), tmp_path)
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    made = export(run, to="ctranslate2", path=tmp_path / "out", quantization="int8")
    assert made.figures.difference < 1e-4
    assert all(tensor.equal(before[name]) for name, tensor in run.model.state_dict().items())


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    """A trained translator, and CTranslate2's translator of its export."""
    folder = tmp_path_factory.mktemp("exported") / "out"
    export(translator, to="ctranslate2", path=folder)
    return translator, open_with("Translator", folder, "float32")


METHODS = {
    "greedy": (Greedy(), {"beam_size": 1}),
    "beam": (Beam(width=5, stop="early"), {"beam_size": 5}),
    "sum": (Beam(width=4, length_penalty=0.0, stop="early"), {"beam_size": 4, "length_penalty": 0}),
    "long": (Beam(width=3, length_penalty=1.5, stop="early"), {"beam_size": 3, "length_penalty": 1.5}),
}


@pytest.mark.parametrize("method", METHODS)
def test_translations_of_a_test_file_are_the_same(exported, method):
    run, translator = exported
    own, theirs = METHODS[method]
    lines = [line for line, _ in small_runs.pairs(200, seed=7)]
    tokenizer, n_new = run.tokenizer, 24
    rows, names = tokenizer.encode_batch(lines), token_names(run.tokenizer)
    rules = Rules(max_new=n_new, end=(tokenizer.end,))
    closed = [[*row, tokenizer.end] for row in rows]
    made = generate(run.model, closed, own, rules=rules, prefix=[[tokenizer.start]])
    ours = [[names[token] for token in one[0].tokens if token != tokenizer.end] for one in made]
    words = [[names[token] for token in row] for row in rows]
    found = translator.translate_batch(words, max_decoding_length=n_new, min_decoding_length=0, **theirs)
    same = sum(a == b.hypotheses[0] for a, b in zip(ours, found, strict=True))
    assert same == len(lines) if method == "greedy" else same >= 0.995 * len(lines)


def test_real_texts_of_the_run_are_compared(documents, tmp_path):
    made = export(documents, to="ctranslate2", path=tmp_path / "out")
    assert "validation set" in made.figures.texts
    assert made.figures.same == made.figures.outputs > 5
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model.bin",
        "tokenizer.json",
        "vocabulary.json",
    }


def test_the_output_of_an_encoder_lies_beside_it(classifier, tmp_path):
    export(classifier, to="ctranslate2", path=tmp_path / "out")
    assert (tmp_path / "out" / "output.safetensors").exists()
    names = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert names == token_names(classifier.tokenizer)


def classic(**changes):
    """The paper's model, with its blocks changed."""
    spec = presets.classic(50, size=SIZE)
    block = replace(spec.decoder.blocks[0], **changes)
    return replace(spec, decoder=replace(spec.decoder, blocks=(block,) * 2))


def attending(**changes):
    attention = classic().decoder.blocks[0].attention
    return classic(attention=replace(attention, **changes))


ROTATED = presets.AttentionSpec(heads=4, position=Rotary())
LLAMA = presets.llama("tiny", vocabulary=50)


def sharing(position):
    block = LLAMA.blocks[0]
    return replace(block, attention=replace(block.attention, position=position))


def warm(position):
    block = sharing(position)
    return replace(block, attention=replace(block.attention, heads=4, weighting=Softmax(temperature=2.0)))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (attending(weighting=Argmax()), "Argmax() attention"),
        (attending(similarity=Cosine()), "similarity Cosine"),
        (attending(heads=SlicedHeads(4)), "heads SlicedHeads"),
        (attending(heads=Heads(4, value_rank=2)), "heads Heads"),
        (attending(position=T5Bias()), "position T5Bias"),
        (attending(position=ALiBi()), "ALiBi outside a decoder"),
        (replace(LLAMA, blocks=(sharing(ALiBi()),)), "ALiBi where several heads share keys"),
        (replace(LLAMA, blocks=(warm(ALiBi()),)), "a temperature beside ALiBi"),
        (attending(mask=masks.window(3)), "mask window(3)"),
        (attending(heads=Heads(2)), "cross-attention with other heads"),
        (classic(arrangement=NoNorm()), "arrangement NoNorm"),
        (classic(arrangement=SingleResidualNorm()), "arrangement SingleResidualNorm"),
        (classic(feed_forward=None), "blocks without feed-forward"),
        (classic(arrangement=PreNorm(LayerNorm(1e-3))), "norms with several epsilons"),
        (
            presets.classic(50, size=SIZE, attention=presets.AttentionSpec(heads=4, position=Rotary())),
            "cross-attention",
        ),
        (replace(presets.gpt2("tiny", vocabulary=50), output=Classes(2)), "output Classes"),
        (replace(presets.bert("tiny", vocabulary=50), output=Classes(2, ngrams=NgramLogits())), "logits of n-grams"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_it_cannot_express_is_named(spec, named):
    assert any(named in one for one in CTranslate2().blocks(spec, "translate"))


def test_a_model_that_is_blocked_is_refused_before_anything_is_written(tmp_path):
    run = run_of(attending(weighting=Argmax()), tmp_path / "run")
    with pytest.raises(OptionError, match=r"cannot be exported to ctranslate2, which has no Argmax\(\) attention"):
        export(run, to="ctranslate2", path=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spec", [classic(), presets.gpt2("tiny", vocabulary=50), presets.llama("tiny", vocabulary=50)])
def test_the_usual_models_are_not_blocked(spec):
    assert CTranslate2().blocks(spec, "generate") == []
