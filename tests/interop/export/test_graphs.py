"""Graphs compute what the model computes, with and without a cache."""

import pytest
import torch

from clearhead.interop.export.graphs import DecoderStep, SourceForward, TargetStep, freeze_for_graph
from clearhead.interop.export.onnx import cache
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
