"""An edit whose result no float can hold is told as that, and neither as a fault of ours nor as a wrong rebuild."""

import pytest

from clearhead.errors import OptionError
from clearhead.experiments.tracing import trace
from clearhead.serve.explorer import Explorer
from clearhead.tracing.edits import Edit
from tests.serve.asking import ask

TOLD = r"overflows: with these edits it has numbers that float32 cannot hold .* edit by smaller numbers"
EDITS = [
    {"step": "query", "to": 1e38},
    {"step": "key", "times": 1e38},
    {"step": "value", "to": 3e38},
    {"step": "score", "to": 1e300},
    {"step": "weight", "times": -1e300},
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_edit_that_overflows_is_told_as_that(translator, edit):
    edits = [{"at": "encoder.0.attention", **edit}, {"at": "encoder.0.attention", "step": "value", "to": 1e38}]
    for target in ("1", None):
        with pytest.raises(OptionError, match=TOLD):
            ask(Explorer(translator), "trace", {"source": "eins", "target": target, "edits": edits})


def test_the_page_is_told_400(translator, client_of):
    edits = [{"at": "encoder.0.attention", "step": "query", "to": 1e38}]
    status, found = client_of(translator).post("api/trace", {"source": "eins", "target": "1", "edits": edits})
    assert status == 400
    assert "encoder.0.attention.context overflows" in found["error"]


def test_a_rebuild_of_what_overflowed_is_no_mismatch(translator):
    made = trace(translator, "eins", "1", edits=[Edit(at="encoder.0.attention", step="query", to=1e38)])
    with pytest.raises(OptionError, match=r"encoder\.0\.attention\.context overflows"):
        made.sites["encoder.0.attention"].head[0].rows()


def test_a_search_with_a_model_that_overflows_is_told(documents):
    edits = [{"at": "decoder.0.attention", "step": "query", "to": 1e38}]
    with pytest.raises(OptionError, match=r"decoder\.output\.logits overflows"):
        ask(Explorer(documents), "decode", {"source": "the cat", "max_new": 3, "edits": edits})


def test_a_large_edit_that_overflows_nothing_is_made(translator):
    edits = [{"at": "encoder.0.attention", "step": "masked", "query": 0, "key": 0, "to": 1e30}]
    assert ask(Explorer(translator), "trace", {"source": "eins", "target": "1", "edits": edits})["id"]
