"""What an error means: mistakes that a newcomer made, and those next to them, raise errors that are explained."""

import string

import numpy as np
import pytest
import torch

from clearhead.exercises import EXERCISES, check
from clearhead.exercises.checking import check_file
from clearhead.exercises.error_hints import HINTS, explain_error
from clearhead.exercises.exercise import LANGUAGES

HEAD = "from clearhead.rasp import *\n"


def needs_a_mask(scores, allowed):
    return scores


WRITTEN = [
    ("scores", lambda query, key: query * key.T, "The matrix product is `@`"),
    ("scores", lambda query, key: query @ key, "`@` needs as many columns"),
    ("scores", lambda query, key: query.numpy() * key.numpy().T, "The matrix product is `@`"),
    ("scores", lambda query, key: query.numpy() @ key.numpy(), "`@` needs as many columns"),
    ("scale", lambda scores, d: scores / torch.sqrt(d), "use `math.sqrt`"),
    ("positions", lambda n, d: torch.sin(n / d), "use `math.sin`"),
    ("positions", lambda n, d: torch.zeros(n, d)[:, d], "Axis 1 has 8 places, counted from 0, and 8 is not one"),
    ("positions", lambda n, d: np.zeros((n, d))[:, d], "Axis 1 has 8 places, counted from 0, and 8 is not one"),
    ("mask", lambda scores, allowed: scores[not allowed], "take one truth value"),
    ("mask", lambda scores, allowed: scores.numpy()[not allowed.numpy()], "take one truth value"),
    ("mask", lambda scores, allowed: scores.masked_fill(~allowed.double(), 0), "exchanges True and False"),
    ("mask", lambda scores, allowed: ~allowed.double().numpy(), "exchanges True and False"),
    ("mask", lambda scores, allowed: needs_a_mask(scores), "A mask is needed there too"),
    ("mask", lambda scores, allowed: ~None, "A mask is needed there too"),
    ("softmax", lambda scores: scores - scores.max(-1), "`.amax(-1, keepdim=True)`"),
    ("kv-cache", lambda x, keys, *_: torch.cat(keys, x), "`torch.cat` takes a list"),
    ("kv-cache", lambda x, keys, *_: torch.cat([keys, x]), "`vector[None]` is a matrix of one row"),
]
PROGRAMS = [
    ("answer = len(tokens)", "A sequence has no length before"),
    ("answer = map(lambda i: tokens[i], indices)", "A sequence has no places to index"),
    ("answer = selector_width(tokens)", "`selector_width` takes what `select` gives"),
    ("answer = map(tokens, lambda n: n)", "The function comes first"),
    ("answer = sequence_map(tokens, indices, lambda a, b: a)", "The function comes first"),
    ("answer = select(tokens, tokens, lambda key, query: True)", "A selector says which keys are chosen"),
    ("answer = tokens == indices", "`==` between sequences compares the sequences"),
]


@pytest.mark.parametrize(("name", "function", "said"), WRITTEN)
def test_an_error_of_a_function_is_explained(name, function, said):
    verdict = check(name, function)
    assert verdict.state == "failed"
    assert said in verdict.lines[1]
    german = check(name, function, language="de")
    assert german.lines[0] == verdict.lines[0]
    assert german.lines[1] != verdict.lines[1]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "said"), PROGRAMS)
def test_an_error_of_a_program_is_explained(code, said, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + code + "\n")
    assert said in "\n".join(check_file(EXERCISES["reverse"], path).lines)


def test_what_is_no_common_error_is_left_as_it_is():
    assert explain_error("line 1: ZeroDivisionError: division by zero", "en") == ()
    verdict = check("scale", lambda scores, d: 1 / 0)
    assert verdict.lines == ("ZeroDivisionError: division by zero", "It was called with scores = [[2, -1]]; d = 4.")


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint.pattern.pattern[:30])
def test_both_languages_fill_the_same_gaps_from_the_pattern(hint):
    gaps = {
        language: {name for _, name, _, _ in string.Formatter().parse(hint.said[language]) if name is not None}
        for language in LANGUAGES
    }
    assert gaps["en"] == gaps["de"]
    assert all(int(name) < hint.pattern.groups for name in gaps["en"])
