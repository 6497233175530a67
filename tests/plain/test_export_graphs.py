"""ONNX and torch.export: graphs for any batch and length, which compute what the run computes.

Here, since the hook that checks shapes would become part of the graph.
"""

import json

import numpy as np
import pytest
import torch

from clearhead.interop.export import export
from clearhead.interop.export.format import cut
from clearhead.interop.export.graphs import SourceForward, TargetStep, freeze_for_graph
from clearhead.interop.export.onnx import Loop, Onnx, OnnxSession, notes, save_graph, target_example
from clearhead.training.train import train
from tests.covering import few
from tests.interop.export.random_runs import draw_spec, run_of
from tests.training.test_wide import wide_recipe
from tests.training.tiny import quiet

FAMILIES = ("encoder-decoder", "decoder", "encoder")


@pytest.mark.slow
@pytest.mark.thorough  # the encoder below, with its wide part, is such a program too
@pytest.mark.parametrize("family", FAMILIES)
def test_torch_runs_the_program_without_us(family, tmp_path):
    figures = export(run_of(draw_spec(family, 1), tmp_path), to="torch", path=tmp_path / "out").figures
    assert figures.difference < 1e-4
    assert [path.name for path in (tmp_path / "out").glob("*.pt2")] == ["model.pt2"]


@pytest.mark.slow
@pytest.mark.thorough  # below is the loop, which goes through an encoder and a decoder that reads it
@pytest.mark.parametrize("family", FAMILIES)
def test_onnxruntime_computes_what_the_run_computes(family, tmp_path):
    spec = draw_spec(family, 1)
    figures = export(run_of(spec, tmp_path), to="onnx", path=tmp_path / "out").figures
    assert figures.difference < 1e-4
    assert figures.same == figures.outputs


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("family", FAMILIES)
def test_onnxruntime_computes_what_many_runs_compute(family, seed, tmp_path):
    assert export(run_of(draw_spec(family, seed), tmp_path), to="onnx", path=tmp_path / "out").figures.passed


def written_graphs(run, folder):
    """Write both graphs; return how texts are encoded, and what a loop must know."""
    Onnx().write(run, folder, "float32")
    return OnnxSession(folder / "encoder.onnx"), json.loads((folder / "clearhead.json").read_text())


def written_decoder(run, folder):
    """The same with the decoder's graph alone: the encoder is torch's, since another graph takes as long again."""
    model = freeze_for_graph(run.model, run.task.context)
    encoder = SourceForward(model)
    save_graph(TargetStep(model), folder / "decoder.onnx", target_example(model.decoder))

    def encode(values):
        found = encoder(*(torch.from_numpy(values[name]) for name in encoder.inputs))
        return {name: one.detach().numpy() for name, one in zip(encoder.outputs, found, strict=True)}

    return encode, json.loads(json.dumps(notes(run)))


@pytest.mark.slow
@pytest.mark.parametrize("written", few([written_decoder, written_graphs], 1))
def test_the_greedy_loop_needs_numpy_alone_and_rows_do_not_disturb_each_other(written, translator, tmp_path):
    encode, told = written(translator, tmp_path)
    rows = [[*row, told["source_end"]] for row in translator.tokenizer.encode_batch(["eins", "zwei drei vier"])]
    longest = max(map(len, rows))
    tokens = np.array([[*row, *[0] * (longest - len(row))] for row in rows])
    lengths = np.array(list(map(len, rows)))
    loop = Loop(OnnxSession(tmp_path / "decoder.onnx"), told["past"])
    fixed = {"source_lengths": lengths, **encode({"tokens": tokens, "lengths": lengths})}
    found = cut(loop.run([[told["start"]]] * 2, fixed, 12), told["ends"])
    ours = translator.translate(["eins", "zwei drei vier"], beam=1)
    assert [translator.tokenizer.decode(row) for row in found] == ours


@pytest.mark.slow
@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.thorough)])  # which begins with torch's
def test_a_wide_part_is_in_the_graph(to, tmp_path):
    run = train(tmp_path / "run", wide_recipe(tmp_path), log=quiet, watcher=quiet)
    assert run.model.output.wide.get_buffer("table_token").abs().sum() > 0
    assert export(run, to=to, path=tmp_path / to).figures.difference < 1e-5
