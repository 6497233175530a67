"""A model that is built for its shapes has the tensors of the real one; it takes little memory and no compiler."""

import subprocess
import sys

import pytest
import torch

from clearhead.model import presets
from clearhead.model.sizes import SMALL, Bounded, TooManyNumbers, build_for_shapes
from tests.model.test_spec_json import SPECS

BUILDABLE = [spec for spec in SPECS if getattr(spec, "d_model", 99) == 8 and spec.blocks]
BUILD = """
import sys
import torch
from clearhead.model.sizes import build_for_shapes
from clearhead.model.sizes import sized
from clearhead.training.recipe import Optimizer
from clearhead.training.optimizers import make_optimizer
from tests.training.test_pretrained import GPT, check_shapes, header_of

for kind in ("encoder", "decoder", "encoder-decoder"):
    build_for_shapes(sized(kind, 100_000, vocabulary=50))
    build_for_shapes(sized(kind, 30_000_000, vocabulary=50))
    sized(kind, 10**10, vocabulary=50_000)
check_shapes(GPT, header_of(GPT), "w")
model = GPT.build()
optimizer = make_optimizer(model, list(model.parameters()), Optimizer(), torch.device("cpu"))
model(torch.zeros(1, 3, dtype=torch.int64)).sum().backward()
optimizer.step()
print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
"""


@pytest.mark.parametrize("spec", [*BUILDABLE, presets.tiny(vocabulary=20)], ids=lambda spec: type(spec).__name__)
def test_it_has_the_tensors_of_the_model_and_draws_no_number_from_the_caller(spec):
    before = torch.get_rng_state()
    found = build_for_shapes(spec).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    built = spec.build().state_dict()
    assert {name: (one.shape, one.dtype) for name, one in found.items()} == {
        name: (one.shape, one.dtype) for name, one in built.items()
    }


@pytest.mark.slow
def test_a_large_one_is_built_on_the_meta_device():
    assert {one.device.type for one in build_for_shapes(presets.gpt2("tiny", vocabulary=50)).parameters()} == {"cpu"}
    assert {one.device.type for one in build_for_shapes(presets.gpt2("small")).parameters()} == {"meta"}


@pytest.mark.parametrize("make", [torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn])
def test_more_numbers_than_allowed_are_refused_before_they_are_made(make):
    with Bounded(20):
        assert make(4, 5).shape == make((0, 5)).T.new_empty(4, 5).shape
        with pytest.raises(TooManyNumbers):
            make(1)
    with Bounded(SMALL), pytest.raises(TooManyNumbers):
        make((10**6, 10**6))
    with Bounded(SMALL), pytest.raises(TooManyNumbers):
        make(size=(10**6, 10**6))


@pytest.mark.slow
def test_sizes_checks_of_files_and_steps_of_training_import_no_compiler():
    """It would take two seconds of every command."""
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
