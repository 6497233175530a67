"""Logs: one line an event, as text or JSON; of an error where it was, and not what it says."""

import json

from clearhead.serve.logs import Logs


def test_an_event_is_a_line_of_json_without_what_is_not_known():
    lines = []
    Logs("json", write=lines.append).event("request", route="/v1/fill", status=200, model=None)
    [line] = map(json.loads, lines)
    assert line.pop("time").endswith("+00:00")
    assert line == {"event": "request", "route": "/v1/fill", "status": 200}


def test_a_failure_names_its_place_and_keeps_the_text_to_itself():
    lines = []
    try:
        raise ValueError("a user's secret text")
    except ValueError as error:
        Logs("json", write=lines.append).failure(error, model="demo")
    [line] = map(json.loads, lines)
    assert (line["error"], line["model"]) == ("ValueError", "demo")
    assert "test_logs.py" in line["where"][0]
    assert "secret" not in lines[0]
