"""One process under torchrun, with DDP and with FSDP2, trains what one without them trains: on a GPU that is NCCL.

`python -m pytest -m gpu tests/training/test_gpu_together.py` takes about a minute. The same runs on a CPU (gloo) are
`thorough`.
"""

import pytest

from tests.training.together import gradients, launch, losses, relative, tensors, worst

pytestmark = pytest.mark.slow

NAMES = ("translating", "translating:dropout")
STEPS = 20
CLOSE = 1e-4
"""Of losses and of all numbers of the last checkpoint, in float32 (products in TensorFloat-32 on a GPU)."""


@pytest.mark.parametrize(
    "device", [pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("cpu", marks=pytest.mark.thorough)]
)
def test_one_process_under_ddp_and_fsdp_is_one_without(device, tmp_path):
    options = ("--steps", STEPS, "--dtype", "float32", "--device", device, "--lr", 1e-3)
    launch(0, tmp_path / "one", "--runs", ",".join(f"ddp/{name}" for name in NAMES), *options)
    runs = [f"{way}/{name}" for way in ("ddp", "fsdp") for name in NAMES]
    launch(1, tmp_path, "--runs", ",".join(runs), *options)
    for run in runs:
        one = tmp_path / "one/ddp" / run.partition("/")[2]
        first = relative(gradients(tmp_path / run), gradients(one))
        found, last = worst(losses(tmp_path / run), losses(one)), worst(tensors(tmp_path / run), tensors(one))
        print(f"{device} {run}: gradients {first:.1e}, losses {found:.1e}, last checkpoint {last:.1e}")
        assert len(losses(one)) == STEPS
        assert first < 1e-6
        assert max(found, last) < CLOSE
