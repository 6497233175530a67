"""torch.export blocks nothing; tests/plain has what its program computes, since the hook would be part of it."""

from clearhead.interop.export import FORMATS
from clearhead.interop.export.torch_program import SHAPES, TorchProgram
from clearhead.model import presets


def test_it_blocks_nothing_and_no_axis_of_its_example_is_a_constant():
    assert TorchProgram().blocks(presets.tiny(50), "translate") == []
    assert FORMATS["torch"].quantizations == ("float32",)
    assert all(n > 1 for shape in SHAPES.values() for n in shape)
