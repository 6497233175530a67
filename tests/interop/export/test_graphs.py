"""Graphs compute what the model computes, with and without a cache."""

from dataclasses import replace

import pytest
import torch

from clearhead.attention.positions import Learned, Sinusoidal
from clearhead.interop.export import FORMATS
from clearhead.interop.export.graphs import (
    SHAPES,
    DecoderStep,
    EncoderForward,
    SourceForward,
    TargetStep,
    TorchProgram,
    freeze_for_graph,
)
from clearhead.interop.export.onnx import cache
from clearhead.model import presets
from tests.interop.export.random_runs import draw_spec, run_of


@pytest.mark.parametrize("seed", range(6))
def test_a_step_with_a_cache_is_the_whole_forward(seed, tmp_path):
    run = run_of(draw_spec("decoder", seed), tmp_path)
    model = freeze_for_graph(run.model, run.task.context)
    tokens, graph = torch.randint(20, (3, 7)), DecoderStep(model)
    with torch.no_grad():
        _, *past = graph(tokens[:, :4], *cache(model, "attention", batch=3, n=0))
        second, *_ = graph(tokens[:, 4:], *past)
        assert torch.allclose(second, run.model(tokens)[:, 4:], atol=1e-5)


def test_a_step_of_a_translator_does_not_see_the_sources_padding(tmp_path):
    run = run_of(draw_spec("encoder-decoder", 1), tmp_path)
    model = freeze_for_graph(run.model, run.task.context)
    source, target, lengths = torch.randint(20, (2, 6)), torch.randint(20, (2, 5)), torch.tensor([6, 3])
    with torch.no_grad():
        made = SourceForward(model)(source, lengths)
        empty = cache(model.decoder, "attention", batch=2, n=0)
        logits, *_ = TargetStep(model)(target, lengths, *made, *empty)
        assert torch.allclose(logits, run.model(source, target, source_lengths=lengths), atol=1e-5)


@pytest.mark.parametrize("position", [Learned(16, first=3, skips=2), Sinusoidal(first=3, skips=2)], ids=repr)
def test_a_token_without_a_position_has_none_in_a_graph(position, tmp_path):
    spec = draw_spec("encoder", 1)
    model = replace(spec, embedding=replace(spec.embedding, position=position)).build().eval()
    tokens, lengths = torch.randint(20, (3, 7)), torch.tensor([7, 5, 4])
    tokens[:, 3] = 2
    with torch.no_grad():
        made = EncoderForward(freeze_for_graph(model, 16))(tokens, lengths)
        assert torch.allclose(made, model(tokens, lengths=lengths), atol=1e-5)


def test_it_blocks_nothing_and_no_axis_of_its_example_is_a_constant():
    assert TorchProgram().blocks(presets.tiny(50), "translate") == []
    assert FORMATS["torch"].quantizations == ("float32",)
    assert all(n > 1 for shape in SHAPES.values() for n in shape)
