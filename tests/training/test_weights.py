"""What a run starts from: frozen parts by name, word vectors, and files whose errors are told."""

import math
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.attention import weighting
from clearhead.attention.heads import Heads
from clearhead.errors import OptionError, RunError
from clearhead.model import presets
from clearhead.model.lora import Lora, is_adapter
from clearhead.model.outputs import Classes
from clearhead.model.presets import Size
from clearhead.model.sizes import spec_from_json, spec_to_json
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.checkpoints import named_tensors
from clearhead.training.recipe import FineTuning
from clearhead.training.run import load
from clearhead.training.tasks import Classify, Generate, Translate
from clearhead.training.tasks.learning import decoder, encoder
from clearhead.training.weights import (
    TensorInfo,
    check_shapes,
    list_parts,
    prepare_parameters,
    read_header,
    start_from_vectors,
    trained_tensors,
)
from tests.model.test_spec_json import SPECS

SIZE = Size(3, 16, 2, 2, 32)


def tuning(**changed):
    return FineTuning(**{"source": "runs/x", "run": "a", "step": 1, "sha256": "0", **changed})


def frozen(spec, *patterns):
    """The names of what is not trained."""
    model = prepare_parameters(spec.build(), tuning(freeze=patterns))
    return {name for name, one in model.named_parameters() if not one.requires_grad}


BERT, CLASSIC = presets.bert(SIZE, vocabulary=20), presets.classic(20, size=SIZE)


def test_parts_are_frozen_by_their_names():
    every = {name for name, _ in BERT.build().named_parameters()}
    blocks = {f"stack.blocks.{i}." for i in range(3)}
    assert frozen(BERT, "embedding") == {name for name in every if name.startswith("embedding.")}
    assert frozen(BERT, "blocks.0-1") == {
        name for name in every if name[: len("stack.blocks.0.")] in sorted(blocks)[:2]
    }
    assert frozen(BERT, "stack") == {name for name in every if name.startswith("stack.")}
    assert frozen(BERT, "blocks.*.attention") == {name for name in every if ".attention." in name}
    assert frozen(BERT, "blocks.2.attention.query", "output") == {
        name for name in every if name.startswith(("stack.blocks.2.attention.query.", "output."))
    } | {"embedding.table"}  # which the output shares
    assert all(name.startswith("encoder.") or name == "decoder.embedding.table" for name in frozen(CLASSIC, "encoder"))


@pytest.mark.parametrize(
    ("spec", "pattern", "why"),
    [
        (BERT, "encoder", r"no parameter is called 'encoder'; there are embedding, blocks\.0-2, output"),
        (BERT, "blocks.3", r"'blocks\.3'"),
        (CLASSIC, "blocks", r"there are encoder\.embedding, encoder\.blocks\.0-2, .*decoder\.blocks\.0-2"),
        (BERT, "*", r"\* is the whole model: nothing is left to train"),
    ],
)
def test_a_name_that_there_is_not_is_refused_with_what_there_is(spec, pattern, why):
    with pytest.raises(OptionError, match=why):
        frozen(spec, pattern)


def test_what_is_listed_can_be_frozen():
    for spec in (BERT, CLASSIC, presets.gpt2(SIZE._replace(n_layers=1), vocabulary=20)):
        for name in list_parts(spec.build()):
            assert frozen(spec, name)


def test_lora_trains_adapters_and_a_new_output_alone():
    model = prepare_parameters(BERT.build(), tuning(lora=Lora(rank=2)))
    assert all(map(is_adapter, trained_tensors(model)))
    model = prepare_parameters(BERT.build(), tuning(lora=Lora(rank=2), new_output=True))
    others = {name for name in trained_tensors(model) if not is_adapter(name)}
    assert others == {name for name, _ in model.named_parameters() if name.startswith("output.")}
    model = prepare_parameters(BERT.build(), tuning(lora=Lora(rank=2), new_output=True, freeze=("output",)))
    assert all(map(is_adapter, trained_tensors(model)))


SMALL = [spec for spec in SPECS if getattr(spec, "d_model", 99) == 8 and spec.blocks]
GPT = presets.gpt2("tiny", vocabulary=50)


def header_of(spec):
    names = {torch.float32: "F32", torch.int32: "I32", torch.int64: "I64"}
    return {name: TensorInfo(names[one.dtype], tuple(one.shape)) for name, one in named_tensors(spec.build()).items()}


@pytest.mark.parametrize("spec", [*SMALL, presets.tiny(vocabulary=20)], ids=lambda spec: type(spec).__name__)
def test_a_models_own_weights_fit(spec):
    """The meta device gives the names and shapes of the model itself, whatever its parts are."""
    check_shapes(spec, header_of(spec), "w")


def with_block(spec, **parts):
    block = spec.blocks[0]
    return replace(spec, blocks=(replace(block, attention=replace(block.attention, **parts)), *spec.blocks[1:]))


FEATURES = weighting.Kernelized(weighting.RandomFeatures(10**12))
LARGE = {
    "blocks": (replace(GPT, blocks=GPT.blocks[:1] * 100_000), "100,000 blocks, and the file only"),
    "d_model": (replace(GPT, d_model=16_000), r"is \(50, 64\) and should be \(50, 16000\)"),
    "vocabulary": (replace(GPT, vocabulary=10**12), r"should be \(1000000000000, 64\)"),
    "overflow": (replace(GPT, vocabulary=10**18, d_model=2**40), "the model cannot be built"),
    "heads": (with_block(GPT, heads=Heads(10**9)), "a count of 1,000,000,000, and no tensor in the file is so large"),
    "features": (with_block(GPT, weighting=FEATURES, similarity=None), "a count of 1,000,000,000,000"),
}


@pytest.mark.parametrize(("spec", "message"), LARGE.values(), ids=LARGE.keys())
def test_a_size_that_is_not_in_the_file_takes_no_memory(spec, message):
    header, before = header_of(GPT), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunError, match=f"^w: .*{message}"):
        check_shapes(spec, header, "w")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB; d_model 16,000 took 5 GB


@pytest.mark.slow
def test_a_spec_with_too_many_parts_is_not_even_made():
    written = spec_to_json(GPT)
    written["blocks"] = written["blocks"][:1] * 100_000
    with pytest.raises(RunError, match=r"model\.json: has more than 50,000 parts"):
        spec_from_json(written, where="model.json")


def test_another_models_weights_are_told():
    header = header_of(GPT)
    name = next(iter(header))
    with pytest.raises(RunError, match=f"w: its tensors are not this model's; they differ in {name}"):
        check_shapes(GPT, {key: one for key, one in header.items() if key != name}, "w")
    with pytest.raises(RunError, match=rf"w: {name} is of I64 and should be torch\.float32"):
        check_shapes(GPT, {**header, name: header[name]._replace(dtype="I64")}, "w")


def test_a_header_is_read_without_the_weights(tmp_path):
    save_file({"a": torch.ones(2, 3), "b": torch.tensor(1)}, tmp_path / "w")
    assert read_header(tmp_path / "w") == {"a": TensorInfo("F32", (2, 3)), "b": TensorInfo("I64", ())}
    for place in (tmp_path, tmp_path / "none", Path("/dev/zero"), Path(__file__)):
        with pytest.raises(RunError, match="cannot be read"):
            read_header(place)


@pytest.fixture
def copy(translator, tmp_path):
    shutil.copytree(translator.folder.path, tmp_path / "run")
    return load(tmp_path / "run", device="cpu").folder


def test_nan_weights_under_a_valid_checksum_give_no_garbage(copy):
    [newest] = copy.checkpoints.all()
    weights = load_file(newest.folder / "model.safetensors")
    next(iter(weights.values())).fill_(math.nan)
    state = {name: one for name, one in newest.state.items() if name not in ("format", "run", "model", "files")}
    copy.checkpoints.save(newest.step, weights, newest.training(), state)
    with pytest.raises(RunError, match=r"no checkpoint can be used: .*NaN"):
        load(copy.path, device="cpu", log=lambda line: None)


def test_a_tokeniser_of_another_size_is_told(copy, monkeypatch):
    """An id beyond the table was an IndexError; a class beyond the labels another label."""
    task = copy.task()
    monkeypatch.setattr(type(copy), "spec", lambda self: task.fitted(presets.tiny(vocabulary=7)))
    with pytest.raises(RunError, match=r"no checkpoint can be used: .* they differ in "):
        load(copy.path, device="cpu", log=lambda line: None)
    monkeypatch.setattr(type(copy), "spec", lambda self: presets.tiny(vocabulary=7))
    with pytest.raises(RunError, match=r"model\.json: its model has another vocabulary or other labels"):
        load(copy.path, device="cpu")
    monkeypatch.setattr(type(copy), "spec", lambda self: GPT)
    with pytest.raises(RunError, match=r"model\.json: to translate takes an encoder-decoder"):
        load(copy.path, device="cpu")


def test_a_tokeniser_for_another_text_is_told(copy, monkeypatch):
    """It was a KeyError."""
    task = copy.task()
    other = replace(task, tokenizers={"text": task.tokenizers["source"]})
    monkeypatch.setattr(type(copy), "task", lambda self: other)
    with pytest.raises(RunError, match=r"model\.json: to translate takes tokenisers for source and target, and no"):
        load(copy.path, device="cpu")


VECTOR_SIZE = Size(1, 4, 2, 2, 8)
FILE = "cat 1 2 3 4\nthe -1 0 1 2\nHaus 5 5 5 5\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text(FILE)
    return str(path)


def words(*texts):
    return Tokenizer.train(texts, kind="word")


def entering(embedding, tokenizer, word):
    """What comes out of an embedding without position for a word."""
    [place] = tokenizer.encode(word)
    return embedding.table[place] * embedding.factor


@pytest.mark.parametrize("make", [lambda: decoder(VECTOR_SIZE, 8, 0.0), lambda: encoder(VECTOR_SIZE, Classes(2), 0.0)])
def test_found_words_are_as_in_the_file_and_the_others_as_they_were(file, make):
    tokenizer, told = words("The cat eats a fish"), []
    model = replace(make(), vocabulary=tokenizer.vocabulary).build()
    before = model.embedding.table.detach().clone()
    kind = Generate if hasattr(model.spec.output, "tied") and not isinstance(model.spec.output, Classes) else Classify
    task = kind(tokenizers={"text": tokenizer}, context=8, labels=("a", "b"))
    start_from_vectors(model, task, file, told.append)
    torch.testing.assert_close(entering(model.embedding, tokenizer, "cat"), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(entering(model.embedding, tokenizer, "The"), torch.tensor([-1.0, 0.0, 1.0, 2.0]))
    [fish] = tokenizer.encode("fish")
    assert torch.equal(model.embedding.table[fish], before[fish])
    assert told == [f"vectors: 2 of {tokenizer.vocabulary} words of the text are in {file}, which has 3"]


def test_both_sides_of_a_translator_have_their_own_words(file):
    source, target = words("das Haus"), words("the house cat")
    task = Translate(tokenizers={"source": source, "target": target}, context=8)
    model = task.fitted(presets.classic(9, size=VECTOR_SIZE)).build()
    told = []
    start_from_vectors(model, task, file, told.append)
    torch.testing.assert_close(entering(model.encoder.embedding, source, "Haus"), torch.full((4,), 5.0))
    torch.testing.assert_close(entering(model.decoder.embedding, target, "cat"), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert len(told) == 2


def test_tokens_that_are_no_words_and_another_width_are_told(file):
    tokenizer = Tokenizer.train(["the cat"], kind="char")
    task = Generate(tokenizers={"text": tokenizer}, context=8)
    model = replace(decoder(VECTOR_SIZE, 8, 0.0), vocabulary=tokenizer.vocabulary).build()
    with pytest.raises(OptionError, match="tokens of the text are of kind 'char'; choose the tokeniser word"):
        start_from_vectors(model, task, file, print)
    tokenizer = words("the cat")
    wide = replace(decoder(Size(1, 8, 2, 2, 8), 8, 0.0), vocabulary=tokenizer.vocabulary).build()
    with pytest.raises(OptionError, match="they have 4 numbers each, and the model is 8 wide"):
        start_from_vectors(wide, Generate(tokenizers={"text": tokenizer}, context=8), file, print)
