"""/v1/translate answers what `Run.translate` does; a greedy one streams, a beam does not."""

import pytest

TEXTS = ["zwei null", "vier", " ", "eins drei drei null zwei"]


def test_a_beam_gives_the_offline_translations_with_their_scores(api, api_runs):
    run = api_runs["translator"]
    found = api.answer("/v1/translate", model="translator", input=TEXTS, beam=4, n_best=3, length_penalty=0.6)
    offline = run.scored_translations(TEXTS, beam=4, n_best=3, length_penalty=0.6)
    assert [[one["text"] for one in row["n_best"]] for row in found["data"]] == [
        [w.text for w in row] for row in offline
    ]
    for row, scored in zip(found["data"], offline, strict=True):
        assert row["text"] == scored[0].text
        for one, written in zip(row["n_best"], scored, strict=True):
            assert (one["score"], one["log_prob"]) == pytest.approx((written.score, written.log_prob), abs=1e-4)
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"]


def test_one_text_and_the_only_translator_need_no_list_and_no_name(api, api_runs):
    found = api.answer("/v1/translate", input="zwei null")
    assert [row["text"] for row in found["data"]] == api_runs["translator"].translate(["zwei null"])


def test_only_blank_texts_are_answered_too(api, api_runs):
    for texts in (" ", ["", "\n"]):
        found = api.answer("/v1/translate", input=texts, beam=2, n_best=2)["data"]
        assert [[one["text"] for one in row["n_best"]] for row in found] == [["", ""]] * len(found)
    [event, usage] = api.stream("/v1/translate", input=" ", beam=1)
    assert (event["text"], event["finish_reason"], usage["usage"]["total_tokens"]) == ("", "stop", 0)
    assert api.answer("/v1/answer", model="translator", input=" ")["data"][0]["output"] == ""


def test_tokens_come_with_their_log_probabilities_and_the_likeliest_instead(api):
    asked = {"input": "zwei null", "beam": 1, "logprobs": True, "top_logprobs": 3}
    [one] = api.answer("/v1/translate", **asked)["data"]
    assert sum(token["log_prob"] for token in one["tokens"]) == pytest.approx(one["log_prob"])
    assert "".join(token["token"] for token in one["tokens"][:-1]) == one["text"]
    assert all(token["top"][0]["token"] == token["token"] and len(token["top"]) == 3 for token in one["tokens"])


def test_a_stream_is_the_whole_in_pieces(api, api_runs):
    events = api.stream("/v1/translate", input=TEXTS, beam=1)
    texts = [""] * len(TEXTS)
    for event in events[:-1]:
        texts[event["index"]] += event["text"]
    assert texts == api_runs["translator"].translate(TEXTS, beam=1)
    assert sorted(event["index"] for event in events[:-1] if event["finish_reason"]) == [0, 1, 2, 3]
    assert events[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("asked", "status", "param"),
    [
        ({"stream": True}, 400, "stream"),
        ({"beam": 2, "n_best": 3}, 400, "n_best"),
        ({"beam": 0}, 400, "beam"),
        ({"length_penalty": "1"}, 400, "length_penalty"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"temperature": 1}, 400, "temperature"),
        ({"input": "null " * 30}, 413, "input"),
        ({"model": "nobody"}, 404, "model"),
        ({"model": "documents"}, 400, "model"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(api, asked, status, param):
    asked = {"input": "zwei", **asked}
    assert api.refused("/v1/translate", **asked)[:2] == (status, param)


def test_a_long_text_is_cut_as_offline_where_the_request_says_so(api, api_runs):
    text = "null " * 30
    found = api.answer("/v1/translate", input=text, truncate=True)
    assert found["data"][0]["text"] == api_runs["translator"].translate([text])[0]
