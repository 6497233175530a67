"""Types of bodies; tests/serve/test_openapi.py sends every name of each of them."""

from clearhead.serve.api.completions import NOT_HERE
from clearhead.serve.bodies import ChatBody, CompletionBody, names_of_body


def test_options_of_openai_that_are_refused_are_names_that_a_body_may_have():
    assert set(NOT_HERE) <= {*names_of_body(CompletionBody), *names_of_body(ChatBody)}
