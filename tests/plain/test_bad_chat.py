"""Messages that are no conversation, as a caller without types may give them."""

import pytest

from clearhead.errors import OptionError
from clearhead.text.templates import ChatTemplate


@pytest.mark.parametrize(
    "messages",
    [[], "hello", {"role": "user"}, [{"role": "user"}], [{"role": 3, "content": "x"}], [None], None, 5, [{}, {}]],
)
def test_what_is_no_conversation_is_told(messages):
    with pytest.raises(OptionError, match="messages"):
        ChatTemplate("{{ messages }}").render(messages)


def test_content_that_is_no_json_is_told():
    with pytest.raises(OptionError, match="messages: expected text, numbers and lists of them"):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": object()}])
