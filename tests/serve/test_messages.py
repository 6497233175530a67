"""The messages between server and page: the page's types are written from ours, and every reply is what they say."""

import re
import types
import typing
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from clearhead.exercises.lesson import CHAPTERS
from clearhead.serve.question_table import QUESTIONS
from clearhead.serve.questions.question import answer_type
from clearhead.serve.questions.stream import Stream
from clearhead.serve.questions.trace import Arithmetic
from clearhead.serve.questions.weights import Row, TurnMessage
from tests.serve.write_messages import OPEN, WRITTEN, typescript

TEXTS = {"translator": "zwei null vier", "documents": "the cat eats", "filler": "the <mask> eats", "classifier": "red"}


def faults(value: object, wanted: Any, at: str) -> list[str]:
    """Return where a value read from JSON is not of a type, each with its place."""
    if is_typeddict(wanted):
        return dict_faults(value, wanted, at)
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        found = [faults(value, one, at) for one in inner]
        return [] if [] in found else min(found, key=len)
    if origin is Literal:
        return [] if value in inner else [f"{at}: {value!r} is none of {inner}"]
    if origin is list:
        return [fault for i, one in enumerate(value) for fault in faults(one, inner[0], f"{at}[{i}]")] \
            if isinstance(value, list) else [f"{at}: no list, but {value!r:.80}"]  # fmt: skip
    if origin is tuple:
        if not isinstance(value, list) or len(value) != len(inner):
            return [f"{at}: no {len(inner)} items, but {value!r:.80}"]
        return [fault for i, one in enumerate(inner) for fault in faults(value[i], one, f"{at}[{i}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{at}: no object, but {value!r:.80}"]
        pairs = [(name, faults(name, inner[0], f"{at} key"), faults(one, inner[1], f"{at}.{name}"))
                 for name, one in value.items()]  # fmt: skip
        return [fault for _, key, one in pairs for fault in (*key, *one)]
    able = {float: (int, float), int: int, str: str, bool: bool, types.NoneType: types.NoneType}[wanted]
    fits = isinstance(value, able) and not (isinstance(value, bool) and wanted is not bool)
    return [] if fits else [f"{at}: no {wanted.__name__}, but {value!r:.80}"]


def dict_faults(value: object, wanted: Any, at: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{at}: no {wanted.__name__}, but {value!r:.80}"]
    hints = get_type_hints(wanted)
    missing = [f"{at}: has no {name}" for name in sorted(wanted.__required_keys__ - set(value))]
    more = [] if wanted.__name__ in OPEN else sorted(set(value) - set(hints))
    inside = [fault for name in hints if name in value for fault in faults(value[name], hints[name], f"{at}.{name}")]
    return [*missing, *(f"{at}: {name} is in no message" for name in more), *inside]


def test_the_pages_types_are_written_from_ours():
    assert WRITTEN.read_text(encoding="utf-8") == typescript(), "run `python -m tests.serve.write_messages`"


def test_the_chapters_that_a_lesson_names_are_those_of_the_page():
    links = (WRITTEN.parents[1] / "learn" / "links.ts").read_text(encoding="utf-8")
    table = links.split("export const LINKS = {", 1)[1].split("\n}", 1)[0]
    assert re.findall(r"^  (\w+): \[", table, re.MULTILINE) == list(CHAPTERS)


def test_a_fault_of_every_kind_is_found():
    """What the checks below rest on: a field renamed, left out, of another type or new is told with its place."""
    good = {"name": "a", "norm": [1.0], "cosine": [1]}
    assert faults({"rows": [good]}, Stream, "stream") == []
    for bad, said in (
        ({"name": "a", "norms": [1.0], "cosine": [1.0]}, ["has no norm", "norms is in no message"]),
        ({**good, "norm": [None]}, ["norm[0]: no float, but None"]),
        ({**good, "norm": 1.0}, ["norm: no list"]),
        ({**good, "name": 1}, ["name: no str"]),
        ({**good, "cosine": [True]}, ["cosine[0]: no float"]),
    ):
        found = faults({"rows": [bad]}, Stream, "stream")
        assert all(any(one in fault for fault in found) for one in said), found
    turn = {name: [] for name in get_type_hints(TurnMessage)}
    assert any("pairs[0]: no 2 items" in one for one in faults({**turn, "pairs": [[1]]}, TurnMessage, "turn"))
    assert faults({"kind": "tile"}, Arithmetic, "site") != []
    assert faults({"a": 1}, dict[str, str], "labels") == ["labels.a: no str, but 1"]
    assert faults(None, TurnMessage | None, "turn") == []
    assert typing.get_type_hints(Row, include_extras=True)["query"] == NotRequired[list[float]]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.slow
def test_every_reply_is_what_its_message_says(name, request, client_of):
    run = request.getfixturevalue(name)
    client, text = client_of(run), TEXTS[name]

    def check(reply, of, at=""):
        status, answer = reply
        assert status == 200, answer
        assert faults(answer, answer_type(QUESTIONS[of]), at or of) == []
        return answer

    facts = check(client.get("api/run"), "run")
    edits = [{"at": "", "step": "score", "head": 0, "query": 0, "key": 0, "to": 1.5}]
    meta = check(client.post("api/trace", {"source": text}), "trace")
    edits[0]["at"] = meta["sites"][0]["name"]
    check(client.post("api/trace", {"source": text, "edits": edits}), "trace")
    check(client.get("api/sentence", token=1), "sentence")
    check(client.get("api/positions", n=8), "positions")
    check(client.get("api/curves"), "curves")
    side = facts["sides"][0]["side"]
    check(client.get("api/neighbours", table=f"{side}.embedding", token=6, count=3), "neighbours")
    check(client.post("api/tokenize", {"text": f"{text} Ω"}), "tokenize")
    check(client.get("api/exercises"), "exercises")
    check(client.get("api/slip", name="slip-2"), "slip")
    check(client.get("api/mystery", name="mystery-1"), "mystery")
    pointed = {"name": "slip-2", "at": "decoder.0.attention", "step": "score", "formula": "query @ key.mT"}
    check(client.post("api/grade", pointed), "grade")
    word = text.split()[0]
    check(client.post("api/context", {"texts": [text, text], "word": word}), "context")
    if "decoding" not in facts["absent"]:
        check(client.post("api/decode", {"source": text, "beam": 2, "candidates": 2, "max_new": 3}), "decode")
        check(client.post("api/sample", {"source": text, "top_k": 3, "max_new": 3}), "sample")

    def ask(of, **asked):
        return check(client.get(f"api/trace/{meta['id']}/{of}", **asked), of)

    for site in meta["sites"]:
        here = {"site": site["name"], "head": 0}
        ask("row", query=0, **here)
        ask("row", query=0, site=site["name"], head="mean")
        ask("column", key=0, **here)
        ask("cell", query=0, key=site["n_key"] - 1, **here)
        ask("sequence", query=0, **here)
        ask("effects", site=site["name"])
        if site["slot"] == "attention":
            ask("spaces", places="0,1", **here)
    for side in facts["sides"]:
        ask("stream", side=side["side"])
        for box in side["boxes"]:
            ask("box", box=box["name"], token=0, key=0, head=0)
        for box in side["boxes"]:
            if box["kind"] == "feed_forward" and "neurons" not in facts["absent"]:
                ask("neurons", at=box["name"], token=1, most=3, unit=0)
        maps = [value["name"] for box in side["boxes"] for value in box["values"] if value["map"]]
        ask("terms", name=maps[0], row=0, unit=0, head=0)
    circuit = client.get(f"api/trace/{meta['id']}/circuit", method="eap")
    if circuit[0] == 200:
        check(circuit, "circuit")
        for edge in circuit[1]["edges"][:1]:  # none where no text to compare with is found
            ask("edge", against=circuit[1]["against"], edge=f"{edge['sender']} -> {edge['receiver']}")
    ask("readings")
    ask("lens")
