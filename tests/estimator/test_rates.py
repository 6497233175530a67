"""Rates that are measured on the spot: they are those of this machine."""

import pytest
import torch

from estimator import rates


def test_products_and_copies_have_a_rate(monkeypatch):
    monkeypatch.setitem(rates.PRODUCT, "cpu", 64)
    monkeypatch.setitem(rates.COPIED, "cpu", 1 << 16)
    tflops, copied = rates.measure_device(torch.device("cpu"), bfloat16=False)
    assert tflops > 0
    assert copied > 0
    assert rates.free_memory() > 2**20


@pytest.mark.slow
@pytest.mark.thorough  # two processes of torch; what uses the rates is given some in the tests of every run
def test_a_link_is_measured_between_two_processes(monkeypatch):
    rate, latency = rates.measure_link()
    assert rate > 0
    assert 0 < latency < 1e6
