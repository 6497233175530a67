"""Surprise: −log p of each token, as a forward pass of the model has it."""

import pytest
import torch
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.tracing import inner as surprise_module
from clearhead.tracing import trace_model
from tests.circuits.random_models import make


def test_a_language_model_is_surprised_at_the_place_before(monkeypatch):
    monkeypatch.setattr(surprise_module, "ROWS", 2)
    case = make("pre")
    tokens = case.clean.tokens["decoder"][:1]
    with torch.no_grad():
        expected = F.cross_entropy(case.model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
    found = trace_model(case.model, tokens).surprise
    assert found[0].isnan()
    assert found[1:].tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_model_of_blanks_at_the_token_itself():
    case = make("post")
    tokens = case.clean.tokens["encoder"][:1]
    with torch.no_grad():
        expected = F.cross_entropy(case.model(tokens)[0], tokens[0], reduction="none")
    assert trace_model(case.model, tokens).surprise.tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_translator_is_surprised_by_its_target_and_a_classifier_by_nothing():
    case = make("both-pre")
    trace = trace_model(case.model, *(rows[:1] for rows in case.clean.tokens.values()))
    assert len(trace.surprise) == 5
    assert trace.surprise[0].isnan()
    case = make("classes")
    with pytest.raises(OptionError, match="does not predict tokens"):
        _ = trace_model(case.model, case.clean.tokens["encoder"][:1]).surprise
