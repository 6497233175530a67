"""Vectors of texts from a run that was trained here."""

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Documents
from clearhead.training.tasks import Embed, task_named
from tests.training import small_runs
from tests.training.small_runs import trained

TEXTS = ["the cat eats", "red plum", "the"]


@pytest.mark.parametrize("kind", [small_runs.filling, small_runs.classifying])
def test_an_encoder_that_was_trained_here_embeds(kind, tmp_path_factory):
    run = trained(kind, tmp_path_factory)
    mean, first = run.embed(TEXTS), run.embed(TEXTS, pooling="first")
    for place, text in enumerate(TEXTS):
        ids = run.task.trace_inputs(text).ids["encoder"]
        with torch.no_grad():
            states = run.model.states(torch.tensor([ids]))[0]
        assert torch.allclose(mean[place], states.mean(0), atol=1e-5)
        assert torch.allclose(first[place], states[0], atol=1e-5)


def test_a_decoder_is_refused_and_nothing_is_trained_to_embed(tmp_path_factory):
    with pytest.raises(OptionError, match="to embed takes an encoder"):
        trained(small_runs.documents, tmp_path_factory).embed(TEXTS)
    assert task_named("embed") is Embed
    with pytest.raises(OptionError, match="vectors of texts are not trained for here"):
        Embed.default_recipe(Corpus(train=Documents(paths=("text",))), 0, False)
