"""A sequence over several processes has the attention of one process; the cases are in `split_cases.py`."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

import clearhead as ch
from clearhead.attention.context_parallel import passes_state
from clearhead.attention.mask_rules import Mask
from clearhead.attention.request import AttentionOptions
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.attention.weighting import Kernelized, Softmax
from clearhead.errors import ShapeError, UnsupportedError
from tests.attention import split_cases


@pytest.mark.slow
def test_every_kind_of_attention_on_1_2_and_4_processes():
    """Forward, gradients, keyed dropout and tiles of weights in float64, to 1e-12."""
    command = [sys.executable, "-W", "error", "-m", "tests.attention.split_cases"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    *off, counted = done.stdout.splitlines()
    assert not off, off
    assert counted.startswith(f"{3 * len(list(split_cases.cases()))} cases")


def test_the_way_of_each_attention():
    def way(weighting, mask, dropout=0.0):
        x = torch.randn(1, 2, 4, 8)
        options = AttentionOptions(None, weighting, ch.positions.NoPosition(), mask, dropout)
        return "state" if passes_state(options.inputs((x, x, x))) else "gather"

    causal, packed = ch.masks.causal(), ch.masks.document([0, 0, 1, 1])
    for mask in (None, causal, ch.masks.padding([3]), causal & packed):
        assert way(Kernelized("elu"), mask) == way(Kernelized("random"), mask) == "state"
        assert way(Softmax(), mask) == way(Kernelized("elu"), mask, 0.1) == "gather"
    for mask in (ch.masks.window(2), causal & ch.masks.window(2), packed, ch.masks.prefix(2)):
        assert way(Kernelized("elu"), mask) == "gather"


@dataclass(frozen=True)
class Parity(Mask):
    def allowed(self, cells):
        return (cells.query - cells.key) % 2 == 0


@dataclass(frozen=True)
class SplitParity(Parity):
    def part(self, queries, keys):
        return self


def test_a_mask_of_ones_own_says_what_it_is_for_a_part():
    x, split = torch.randn(1, 2, 6, 8), SequenceSplit(6)
    with pytest.raises(UnsupportedError, match=r"Parity does not say .* define part"):
        ch.attend(x, x, x, mask=Parity(), split=split)
    expected = ch.attend(x, x, x, mask=Parity())
    torch.testing.assert_close(ch.attend(x, x, x, mask=SplitParity(), split=split), expected)


def test_a_tensor_that_is_not_a_part_is_refused():
    x = torch.randn(1, 2, 6, 8)
    with pytest.raises(ShapeError, match="of 6 places over 2 processes each holds 4"):
        ch.attend(x, x, x, split=SequenceSplit(6, rank=1, count=2))
