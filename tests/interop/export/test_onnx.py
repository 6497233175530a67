"""ONNX: what surrounds the graphs; tests/plain has what they compute, since the hook would be part of them."""

from dataclasses import replace

import torch

from clearhead.interop.export.onnx import Onnx, dynamic_shapes, notes
from clearhead.model import presets
from clearhead.model.outputs import Classes
from tests.interop.export.random_runs import draw_spec, run_of


def test_a_decoder_for_classes_is_refused():
    spec = replace(presets.gpt2("tiny", vocabulary=50), output=Classes(2))
    assert Onnx().blocks(spec, "classify") == ["cache for a decoder whose output is Classes"]
    assert Onnx().blocks(presets.tiny(50), "translate") == []


def test_every_axis_that_may_vary_is_said_to():
    free = torch.export.Dim.DYNAMIC
    shapes = dynamic_shapes(("tokens", "source_lengths", "source_key_0", "past_key_0"))
    assert shapes == ({0: free, 1: free}, {0: free}, ({0: free, 2: free}, {0: free, 2: free}))


def test_the_notes_have_what_a_loop_needs(tmp_path):
    run = run_of(draw_spec("decoder", 1), tmp_path)
    told = notes(run)
    assert (told["end"], told["context"]) == (run.tokenizer.end, run.task.context)
    shape = run.model.stack.blocks[0].attention.shape
    assert told["past"][0] == {"heads": shape.n_kv_heads, "width": shape.d_head}
    assert len(told["past"]) == 2 * len(run.model.stack.blocks)
