"""The text that a circuit is compared with, if none is typed."""

from clearhead.serve.explorer import Explorer
from clearhead.serve.questions import circuit
from tests.serve.asking import ask
from tests.training.small_runs import stretch, trained


def suggested(run):
    explorer = Explorer(run)
    return circuit.suggest_text(explorer.find_trace(ask(explorer, "trace", {"source": "🙂"})["id"])) or ""


def test_no_text_with_half_a_letter_is_proposed(tmp_path_factory, monkeypatch):
    run = trained(stretch, tmp_path_factory)
    assert circuit.BROKEN not in suggested(run)
    monkeypatch.setattr(circuit, "BROKEN", "no such text")
    assert "\N{REPLACEMENT CHARACTER}" in suggested(run), "the tokens of this run are bytes"
