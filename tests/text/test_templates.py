"""Templates are tried before they are needed: they must be Jinja, and end within their bounds."""

import pytest

from clearhead.errors import OptionError
from clearhead.text.templates import check_template


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% for m in messages %}", "run.jinja: Unexpected end of template"),
        ("{{ 'a' * 3000000000 }}", "run.jinja: takes more than 0.5 GB of memory"),
        ("{{ 'a' * 60000000 }}", "run.jinja: gives more than 50 MB"),
        ("a" * 1_000_001, "run.jinja: a chat template of 1,000,001 characters"),
    ],
)
def test_a_template_that_cannot_be_used_is_told_before_it_is_needed(text, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        check_template(text, {}, where="run.jinja")


def test_a_template_may_refuse_the_conversation_that_it_is_tried_on():
    check_template("{{ raise_exception('give a system message') }}", {}, where="run.jinja")
