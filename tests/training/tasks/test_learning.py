"""What trains a task that does not say otherwise: the model that fits, and the best checkpoint."""

import pytest

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.training.tasks.measures import Measure
from tests.training.tasks.echo import Echo, echo_task


def test_it_takes_an_encoder_of_its_vocabulary():
    task = echo_task()
    assert task.fitted(presets.bert("tiny", vocabulary=9)).vocabulary == task.tokenizer.vocabulary
    with pytest.raises(OptionError, match="to echo takes an encoder; the model is a Decoder"):
        task.fitted(presets.gpt2("tiny", vocabulary=9))


def test_the_best_checkpoint_has_most_of_its_score_or_the_least_loss():
    assert echo_task().goal({"accuracy": 0.5}, 2.0) == 0.5
    assert echo_task().goal({}, 2.0) == -2.0


def test_the_best_checkpoint_has_least_of_a_score_that_is_an_error():
    class Error(Echo):
        measures = (Measure("word_error", "word error %", 100, higher=False),)
        best_by = "word_error"

    assert Error(tokenizers={}, context=8).goal({"word_error": 0.25}, 2.0) == -0.25
