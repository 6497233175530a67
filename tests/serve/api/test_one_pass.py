"""Classes, blanks, vectors and answers are those of the offline run, however requests are batched."""

import base64
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest


def test_classes_are_the_offline_ones(api, api_runs):
    texts = ["red plum", "old dog", "red cow"]
    found = api.answer("/v1/classify", model="classifier", input=texts)
    for one, offline in zip(found["data"], api_runs["classifier"].classify(texts), strict=True):
        assert one["label"] == offline.label
        assert one["probabilities"] == pytest.approx(offline.probabilities, abs=1e-5)
    assert found["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


def test_a_blank_text_has_no_label_as_on_the_command_line(api, api_runs):
    texts = ["", "red plum", " \t", "old dog"]
    found = api.answer("/v1/classify", model="classifier", input=texts)["data"]
    assert [one["label"] for one in found] == [one["output"] for one in api_runs["classifier"].answer(texts)]
    assert found[0] == {"index": 0, "label": "", "probability": None, "probabilities": {}}
    assert found[1]["probability"] == pytest.approx(api_runs["classifier"].classify(texts[1:2])[0].probability)
    assert api.answer("/v1/classify", model="classifier", input=" ")["data"][0]["label"] == ""


def test_blanks_are_filled_as_offline(api, api_runs):
    texts = ["the <mask> eats the <mask>", "<mask>"]
    found = api.answer("/v1/fill", input=texts, shown=3)
    for one, offline in zip(found["data"], api_runs["filler"].fill(texts, shown=3), strict=True):
        assert one["text"] == offline.text
        assert [[piece["piece"] for piece in blank] for blank in one["blanks"]] == [
            [piece for piece, _ in blank] for blank in offline.blanks
        ]
    assert api.refused("/v1/fill", input=["the <mask>", "no blank"])[:2] == (400, "input")


def test_vectors_are_the_offline_ones_as_numbers_and_as_base64(api, api_runs):
    asked = {"model": "filler", "input": ["the cat", "the dog eats"], "normalize": True}
    numbers = [one["embedding"] for one in api.answer("/v1/embeddings", **asked)["data"]]
    coded = [one["embedding"] for one in api.answer("/v1/embeddings", **asked, encoding_format="base64")["data"]]
    decoded = [np.frombuffer(base64.b64decode(one), "<f4") for one in coded]
    offline = api_runs["filler"].embed(asked["input"], normalize=True).numpy()
    assert np.array_equal(np.array(numbers, np.float32), np.stack(decoded))
    assert np.allclose(numbers, offline, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "status", "param"),
    [
        ({"dimensions": 3}, 400, "dimensions"),
        ({"encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": [[1, 2]]}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": [" \n"]}, 400, "input"),
        ({"input": "cat " * 100}, 413, "input"),
        ({"model": "documents"}, 400, "model"),
    ],
)
def test_what_has_no_vector_is_refused(api, asked, status, param):
    assert api.refused("/v1/embeddings", **{"model": "filler", "input": "cat", **asked})[:2] == (status, param)
    assert len(api.answer("/v1/embeddings", model="filler", input="cat", dimensions=32)["data"][0]["embedding"]) == 32


def test_any_task_answers_as_on_the_command_line(api, api_runs):
    found = api.answer("/v1/answer", model="classifier", input=["red plum", ""])["data"]
    offline = api_runs["classifier"].answer(["red plum", ""])
    assert [one["output"] for one in found] == [one["output"] for one in offline]
    assert found[0]["probabilities"] == pytest.approx(offline[0]["probabilities"])


def test_requests_at_once_are_not_mixed_up(api, api_runs):
    texts = [f"{colour} {thing}" for colour in ("red", "old") for thing in ("plum", "dog", "cow", "pear")] * 4
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda text: api.answer("/v1/classify", input=text)["data"][0], texts))
    offline = api_runs["classifier"].classify(texts)
    assert [one["label"] for one in found] == [one.label for one in offline]
    assert [one["probability"] for one in found] == pytest.approx([one.probability for one in offline], abs=1e-5)


def test_a_wrong_text_fails_alone(api):
    with ThreadPoolExecutor(8) as pool:
        texts = ["the <mask>", "nothing"] * 8
        statuses = list(pool.map(lambda text: api.post("/v1/fill", input=text)[0], texts))
    assert statuses == [200, 400] * 8
