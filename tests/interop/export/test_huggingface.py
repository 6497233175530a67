"""transformers opens an exported folder by its Auto classes, and computes what the run computes."""

import importlib.util
import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from clearhead.attention.weighting import Argmax
from clearhead.errors import OptionError, RunError
from clearhead.interop.export import export
from clearhead.interop.export.format import compare
from clearhead.interop.export.huggingface import (
    Expression,
    HuggingFace,
    TransformersPeer,
    check_ids,
    express,
    frame_of,
    model_card,
)
from clearhead.interop.export.samples import draw_samples
from clearhead.interop.huggingface import read_hugging_face
from clearhead.interop.run import import_model
from clearhead.model import presets
from clearhead.model.arrangements import PreNorm
from clearhead.model.outputs import Classes
from clearhead.model.presets import Size
from clearhead.training.run import Run
from clearhead.training.tasks.instruct import Instruct
from clearhead.training.tasks.learning import decoder
from tests.covering import few
from tests.interop import saved_models
from tests.interop.export.random_runs import CONTEXT, draw_spec, run_of
from tests.peers import transformers

SIZE = Size(2, 32, 4, 2, 48)
WIDE = Size(2, 32, 4, 4, 48)
SPECS = {
    "gpt2": presets.gpt2(WIDE, length=CONTEXT),
    "gpt2 without biases": decoder(WIDE, CONTEXT, 0.0),
    "llama": presets.llama(SIZE),
    "bert": presets.bert(WIDE, length=CONTEXT),
    "bert classes": presets.bert(WIDE, length=CONTEXT, output=Classes(3, hidden=True)),
    "marian": presets.classic(50, size=WIDE),
    "pegasus": presets.classic(50, size=WIDE, arrangement=PreNorm()),
    "llama tied": presets.llama(SIZE, tied=True, rotary_base=500.0),
}


OFTEN = ("gpt2", "llama", "bert classes", "marian")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.thorough) for kind in SPECS]
)
def test_transformers_computes_what_the_run_computes(kind, tmp_path):
    run = run_of(SPECS[kind], tmp_path)
    figures = export(run, to="hf", path=tmp_path / "out").figures
    assert figures.peer.startswith("transformers")
    assert figures.difference < 1e-4
    assert figures.same == figures.outputs
    assert figures.outputs > 5 or kind.startswith("bert")


def test_it_is_read_again_with_the_same_numbers(tmp_path):
    run = run_of(SPECS["llama"], tmp_path)
    made = HuggingFace()
    made.write(run, tmp_path, "float32")
    again = read_hugging_face(tmp_path)
    ours = dict(run.model.named_parameters())
    assert {name: tensor.equal(ours[name]) for name, tensor in again.model.named_parameters()} == dict.fromkeys(
        ours, True
    )
    assert (again.task, again.start, again.end) == ("generate", run.tokenizer.start, (run.tokenizer.end,))


def test_biases_that_the_model_lacks_are_zero(tmp_path):
    run = run_of(SPECS["gpt2 without biases"], tmp_path)
    HuggingFace().write(run, tmp_path, "float32")
    again = dict(read_hugging_face(tmp_path).model.named_parameters())
    ours = dict(run.model.named_parameters())
    assert set(ours) < set(again)
    assert all(again[name].equal(ours[name]) if name in ours else not again[name].any() for name in again)


@pytest.mark.slow
def test_a_trained_run_has_a_card_and_its_special_tokens(documents, tmp_path):
    made = export(documents, to="hf", path=tmp_path / "out")
    assert "validation set" in made.figures.texts
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text-generation" in card
    assert "GPT2LMHeadModel" in card
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eos_token_id"] == documents.tokenizer.end
    assert frame_of(documents) == ([documents.tokenizer.end], [])  # of several documents, each begins with an end


CLASSES = {
    "gpt2": ("generate", "GPT2LMHeadModel"),
    "llama": ("generate", "LlamaForCausalLM"),
    "bert": ("fill", "BertForMaskedLM"),
    "bert classes": ("classify", "BertForSequenceClassification"),
    "marian": ("translate", "MarianMTModel"),
    "pegasus": ("translate", "PegasusForConditionalGeneration"),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_the_class_is_named(kind):
    task, named = CLASSES[kind]
    found = express(SPECS[kind], task, CONTEXT)
    assert isinstance(found, Expression)
    assert found.class_name == named


def test_what_no_class_expresses_is_refused_by_name(tmp_path):
    spec = SPECS["llama"]
    hard = replace(spec.blocks[0], attention=replace(spec.blocks[0].attention, weighting=Argmax()))
    run = run_of(replace(spec, blocks=(hard,) * 2), tmp_path / "run")
    with pytest.raises(OptionError, match=r"cannot be exported to hf, which has no class .*Argmax"):
        export(run, to="hf", path=tmp_path / "out")
    assert not (tmp_path / "out").exists()


GOING_BACK = ("m2m100", "roberta", "classifier", "llama", "embedder", "distilbert", "marian", "bart", "t5", "gemma2")
"""tests/interop/architectures has what is particular to each."""


@pytest.mark.slow
@pytest.mark.parametrize("name", few(GOING_BACK, 3))
def test_an_imported_model_goes_back_as_it_came(name, tmp_path):
    """The same class with bit-equal tensors, the pooler too; transformers computes and decodes what the run does."""
    peer, _ = saved_models.save(name, tmp_path / "source")
    run = import_model(tmp_path / "source", tmp_path / "run", device="cpu")
    figures = export(run, to="hf", path=tmp_path / "out").figures
    assert figures.difference < 1e-5
    assert figures.same == figures.outputs
    theirs, ours = (load_file(tmp_path / place / "model.safetensors") for place in ("source", "out"))
    assert ours.keys() == theirs.keys()
    assert all(ours[key].equal(theirs[key]) for key in theirs)
    assert type(peer).__name__ in (tmp_path / "out" / "config.json").read_text()
    source, again = (transformers.AutoTokenizer.from_pretrained(tmp_path / place) for place in ("source", "out"))
    if name in ("roberta", "classifier", "embedder"):
        assert again("the cat", "a dog")["input_ids"] == source("the cat", "a dog")["input_ids"]
    said = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert said.get("forced_bos_token_id") == {"bart": 2, "m2m100": 5}.get(name)
    assert said.get("bad_words_ids") == ([[0]] if name == "marian" else None)


@pytest.mark.slow
def test_an_encoder_without_a_pooler_is_opened_without(tmp_path):
    saved_models.save("embedder", tmp_path / "source")
    run = import_model(tmp_path / "source", tmp_path / "run", device="cpu")
    (tmp_path / "run" / "pooler.safetensors").unlink()
    assert export(run, to="hf", path=tmp_path / "out").figures.difference < 1e-5
    assert 'from_pretrained(".", add_pooling_layer=False)' in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
def test_a_run_that_follows_instructions_keeps_its_chat_template(tmp_path):
    _, tokenizer = saved_models.save("llama", tmp_path / "source")
    made = import_model(tmp_path / "source", tmp_path / "run", device="cpu")
    task = Instruct(
        tokenizers=dict.fromkeys(("prompt", "answer"), made.tokenizer),
        context=made.task.context,
        framing=dict.fromkeys(("prompt", "answer"), made.task.frame()),
    )
    run = Run(made.folder, task, made.model, 0)
    figures = export(run, to="hf", path=tmp_path / "out").figures
    assert figures.same == figures.outputs > 5
    said = [{"role": "user", "content": "the cat"}]
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = tokenizer.apply_chat_template(said, tokenize=False)
    assert again.apply_chat_template(said, tokenize=False) == expected
    assert isinstance(express(run.model.spec, "instruct", 64), Expression)


@pytest.fixture
def written(tmp_path):
    run = run_of(presets.llama(Size(1, 32, 4, 2, 48)), tmp_path)
    HuggingFace().write(run, tmp_path, "float32")
    return run, tmp_path


def test_our_reader_compares_where_transformers_is_not_installed(written, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    figures = compare(HuggingFace().open(*written, "float32"))
    assert figures.peer.startswith("clearhead's own reader")
    assert figures.difference < 1e-5
    assert figures.outputs == 0


def test_outputs_of_a_peer_that_writes_something_else_are_counted(written, monkeypatch):
    peer = HuggingFace().open(*written, "float32")
    assert compare(peer).same == compare(peer).outputs > 0
    greedy = TransformersPeer.greedy

    def other(self, rows, *how):
        return [[token ^ 1 for token in row] for row in greedy(self, rows, *how)]

    monkeypatch.setattr(TransformersPeer, "greedy", other)
    assert not compare(peer).passed


def test_other_ids_are_noticed(written):
    run, folder = written
    whole = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = whole["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(RunError, match="AutoTokenizer reads"):
        check_ids(run, folder, draw_samples(run))


def test_a_trained_run_tells_its_scores(documents, tmp_path):
    card = model_card(documents, "GPT2LMHeadModel")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\n")
    assert "- measured in training: `{" in card
    assert '"loss"' in card
    assert "AutoModelForCausalLM.from_pretrained" in card
    assert "measured" not in model_card(run_of(draw_spec("decoder", 0), tmp_path), "X")
