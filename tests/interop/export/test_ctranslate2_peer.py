"""The check of CTranslate2's exports notices what is wrong."""

import copy

import pytest
import torch

from clearhead.errors import RunError
from clearhead.interop.export import export
from clearhead.interop.export.ctranslate2 import CTranslate2
from clearhead.interop.export.ctranslate2_peer import round_as_written
from clearhead.training.run import Run
from tests.interop.export.random_runs import draw_spec, run_of


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "encoder"])
@pytest.mark.slow
def test_other_weights_fail_and_nothing_is_left(family, tmp_path, monkeypatch):
    run, write = run_of(draw_spec(family, 2), tmp_path / "run"), CTranslate2.write

    def wrong(self, run, folder, quantization):
        other = copy.deepcopy(run.model)
        with torch.no_grad():
            next(one for name, one in other.named_parameters() if name.endswith("output.weight")).mul_(1.5)
        write(self, Run(run.folder, run.task, other, 0), folder, quantization)

    monkeypatch.setattr(CTranslate2, "write", wrong)
    with pytest.raises(RunError, match="not written, since the export fails its check"):
        export(run, to="ctranslate2", path=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_weights_are_rounded_to_127_steps_of_the_largest_of_a_row(tmp_path):
    run = run_of(draw_spec("decoder", 0), tmp_path)
    assert round_as_written(run, "float32") is run.model
    weight = dict(round_as_written(run, "int8").named_parameters())["stack.blocks.0.attention.output.weight"]
    steps = weight / (weight.abs().amax(1, keepdim=True) / 127)
    assert torch.allclose(steps, steps.round(), atol=1e-3)
