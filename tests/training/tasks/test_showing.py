"""What is shown of a text where a task does not say otherwise."""

import pytest

from clearhead.errors import OptionError
from tests.training.tasks.echo import echo_task


def test_a_text_is_traced_with_its_start_token():
    assert echo_task().trace_inputs("abc").pieces == {"encoder": ["<s>", "a", "b", "c"]}
    with pytest.raises(OptionError, match="the text has 11 tokens, and the model was trained to read 8; shorten it"):
        echo_task().trace_inputs("abcabcabca")


def test_a_text_in_code_is_a_string():
    assert echo_task().example_code("it's") == repr("it's")
