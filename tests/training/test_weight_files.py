"""Weights against a spec, before either takes memory: sizes from a stranger, NaN, and another model's file."""

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
from clearhead.errors import RunError
from clearhead.model import presets
from clearhead.model.spec_json import spec_from_json, spec_to_json
from clearhead.training.checkpoints import named_tensors
from clearhead.training.run import load
from clearhead.training.weight_files import TensorInfo, check_shapes, read_header
from tests.model.test_spec_json import SPECS

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
