"""Attention in an answer is that of `clearhead.trace`, for the sites and heads that were asked for, within a bound."""

import base64

import numpy as np
import pytest

import clearhead as ch


def weights(found, site):
    [one] = [one for one in found["sites"] if one["site"] == site]
    return np.array(one["weight"])


def test_a_translation_comes_with_every_weight(api, api_runs):
    run, text = api_runs["translator"], "zwei null vier"
    [one] = api.answer("/v1/translate", input=text, beam=1, attention=True)["data"]
    trace = ch.trace(run, text)
    assert one["attention"]["tokens"] == {side: trace.sides[side].tokens for side in ("encoder", "decoder")}
    assert [site["site"] for site in one["attention"]["sites"]] == list(trace.sites)
    for site in trace.sites.values():
        expected = np.stack([head.weight.numpy() for head in site.head])
        assert np.allclose(weights(one["attention"], site.name), expected, atol=2e-6)


def test_of_a_text_that_is_continued_prompt_and_output_are_seen(api, api_runs):
    run = api_runs["documents"]
    wanted = {"sites": ["decoder.0.attention"], "heads": [1], "encoding_format": "base64"}
    asked = {"model": "documents", "prompt": "the cat", "temperature": 0, "max_tokens": 12}
    [one] = api.answer("/v1/completions", **asked, attention=wanted)["choices"]
    trace = ch.trace(run, "the cat", one["text"])
    [site] = one["attention"]["sites"]
    assert (site["query"], site["key"], site["heads"]) == ("decoder", "decoder", [1])
    found = np.frombuffer(base64.b64decode(site["weight"]), "<f4").reshape(site["shape"])
    assert one["attention"]["tokens"]["decoder"] == trace.sides["decoder"].tokens
    assert np.allclose(found[0], trace.decoder[0].attention.head[1].weight.numpy(), atol=2e-6)


def test_texts_of_one_pass_have_it_too(api, api_runs):
    [one] = api.answer("/v1/classify", input="red plum", attention={"heads": [0]})["data"]
    expected = ch.trace(api_runs["classifier"], "red plum").encoder[0].attention.head[0].weight
    assert np.allclose(weights(one["attention"], "encoder.0.attention")[0], expected.numpy(), atol=2e-6)
    assert "attention" in api.answer("/v1/fill", input="the <mask>", attention=True)["data"][0]


@pytest.mark.parametrize(
    "wanted",
    [
        "yes",
        {"sites": ["decoder.9.cross"]},
        {"sites": []},
        {"sites": [3]},
        {"heads": [2]},
        {"heads": [True]},
        {"heads": 0},
        {"encoding_format": "gif"},
        {"layers": [0]},
    ],
)
def test_a_wrong_wish_is_refused(api, wanted):
    status, _, message = api.refused("/v1/translate", input="zwei", attention=wanted)
    assert status == 400
    assert message


def test_more_weights_than_may_be_are_refused(api_runs):
    from clearhead.serve.limits import Limits
    from tests.serve.api_serving import serving

    with serving([api_runs["translator"]], limits=Limits(attention=50)) as client:
        status, param, message = client.refused("/v1/translate", input="zwei null", attention=True)
        assert (status, param) == (413, "attention")
        assert "50 are the most in one answer" in message
        few = {"sites": ["decoder.0.attention"], "heads": [0]}
        assert client.post("/v1/translate", input="zwei", attention=few)[0] == 200


def test_past_the_context_no_one_pass_has_all_of_it(api):
    asked = {"model": "stretch", "prompt": "the cat", "max_tokens": 60, "temperature": 0}
    assert api.refused("/v1/completions", **asked, attention=True)[:2] == (413, "attention")
