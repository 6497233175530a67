"""The interface of methods: the registry, counts of passes, progress, and one of a user's own."""

from dataclasses import dataclass

import pytest
import torch

import clearhead as ch
from clearhead.circuits import EAP, EAPIGInputs, Exact, Method, find_method, score_edges
from clearhead.circuits.methods import method_names
from clearhead.errors import OptionError
from tests.circuits.random_models import make
from tests.circuits.test_gradients import contrast_of
from tests.registering import registry_restored


@dataclass(frozen=True)
class Counting(Method):
    """A user's own method."""

    start: float = 1.0

    def score(self, contrast):
        return torch.arange(len(contrast.graph.edges)).repeat(len(contrast), 1) + self.start


def test_a_method_of_the_users_own_is_one_of_them():
    with registry_restored():
        ch.register(Counting)
        method = find_method(f"{__name__}:Counting(start=3.0)")
    assert method == Counting(3.0)
    assert score_edges(method, contrast_of(make("pre")))[1, 2] == 5
    with pytest.raises(OptionError, match=r"there is no 'eep'\. Did you mean 'eap'\? There are .*eap"):
        find_method("eep")


@pytest.mark.parametrize("name", method_names())
def test_every_method_gives_a_finite_number_for_every_edge(name):
    contrast = contrast_of(make("pre-alibi-argmax"))
    scores = score_edges(find_method(name), contrast)
    assert scores.shape[1] == len(contrast.graph.edges)
    assert len(scores) == (2 if find_method(name).by_pair else 1)
    assert scores.isfinite().all()


def test_weights_learn_afterwards_as_before_and_modes_are_restored():
    case = make("pre")
    case.model.train()
    score_edges(EAP(), contrast_of(case))
    assert all(parameter.requires_grad for parameter in case.model.parameters())
    assert case.model.training


def test_passes_are_counted_and_progress_is_told():
    contrast, told = contrast_of(make("pre")), []
    score_edges(EAPIGInputs(3), contrast, progress=lambda done, of: told.append((done, of)))
    assert (contrast.forwards, contrast.backwards) == (5, 3)
    assert told == [(1, 3), (2, 3), (3, 3)]
    contrast = contrast_of(make("pre"))
    score_edges(Exact(), contrast)
    assert contrast.forwards == len(contrast.graph.edges) + 2
