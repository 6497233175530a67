"""Pages for people who come from another library: their tables of names hold for that library, if it is installed.

Transformers and x-transformers are installed with the tests, and their pages run as pages. TransformerLens and bertviz
are not, and these tests are skipped without them. They were run with TransformerLens 4.3.0 and bertviz 1.4.1, in an
environment that has both.
"""

import re
import warnings
from pathlib import Path

import pytest
import torch

import clearhead as ch
from tests.docs import small_gpt2
from tests.once import made_once

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "When Mary and John went to the store, John gave a drink to"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return made_once(tmp_path_factory, "small-gpt2", small_gpt2.save)


def names_of_hooks() -> dict[str, str]:
    page = (DOCS / "from-transformerlens.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| hook, for layer 0 | name here |")
    return dict(re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", table, re.MULTILINE))


def block_of(page: str, sentence: str) -> str:
    """Return the code in the peer's words that stands below a sentence of a page."""
    _, _, below = (DOCS / page).read_text(encoding="utf-8").partition(sentence + "\n\n```text\n")
    return below.partition("```")[0]


def opened_by_lens(home: Path):
    """Return the model as TransformerLens opens it; skip where that is not installed."""
    bridge = pytest.importorskip("transformer_lens.model_bridge").TransformerBridge
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = AutoModelForCausalLM.from_pretrained(home, attn_implementation="eager")
        return bridge.boot_transformers(str(home), hf_model=loaded, tokenizer=AutoTokenizer.from_pretrained(home))


@pytest.mark.filterwarnings("ignore")
def test_the_hooks_of_transformer_lens_are_the_values_of_the_table(home, tmp_path):
    lens = opened_by_lens(home)
    _, cache = lens.run_with_cache(lens.to_tokens(TEXT, prepend_bos=False))
    trace = ch.trace(ch.import_model(home, tmp_path / "run"), TEXT)
    for hook, name in names_of_hooks().items():
        theirs, ours = cache[hook][0], value_of(trace, name)
        theirs = theirs.transpose(0, 1) if name.endswith(("query", "key", "value", "context")) else theirs
        seen = ours > -torch.inf
        assert torch.allclose(theirs[seen], ours[seen], atol=1e-4), hook


@pytest.mark.filterwarnings("ignore")
def test_the_hook_of_the_page_does_what_the_edit_beside_it_does(home, tmp_path):
    lens = opened_by_lens(home)
    names = {"model": lens, "tokens": lens.to_tokens(TEXT, prepend_bos=False)}
    exec(block_of("from-transformerlens.md", "Ablate a head. In TransformerLens (4.3):"), names)
    zero = ch.Edit(at="decoder.0.attention", step="context", head=1, times=0.0)
    run = ch.import_model(home, tmp_path / "run")
    logits, plain = (ch.trace(run, TEXT, edits=edits).value("decoder.output.logits") for edits in ([zero], []))
    assert torch.allclose(names["logits"][0], logits, atol=1e-4)
    assert not torch.allclose(names["logits"][0], plain, atol=1e-2)


def value_of(trace: ch.Trace, name: str) -> torch.Tensor:
    site, _, step = name.rpartition(".")
    if step in ("masked", "weight"):
        return torch.stack([getattr(head, step) for head in trace[site].head])
    return getattr(trace[site], step) if step in ("query", "key", "value", "context") else trace.value(name)


def test_every_name_of_the_table_is_there(home, tmp_path):
    trace = ch.trace(ch.import_model(home, tmp_path / "run"), TEXT)
    assert len(names_of_hooks()) >= 15
    assert [name for name in names_of_hooks().values() if name not in trace.names] == []


@pytest.mark.filterwarnings("ignore")
def test_bertviz_draws_the_weights_of_a_trace(home, tmp_path):
    head_view = pytest.importorskip("bertviz").head_view
    trace = ch.trace(ch.import_model(home, tmp_path / "run"), TEXT)
    attention = tuple(torch.stack([head.weight for head in trace[site].head]).unsqueeze(0) for site in trace.sites)
    page = head_view(attention, trace.sides["decoder"].tokens, html_action="return").data
    assert "Mary" in page


@pytest.mark.filterwarnings("ignore")
def test_bertvizs_own_lines_on_the_page_run(home):
    names = {"head_view": pytest.importorskip("bertviz").head_view}
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(home)
    model = AutoModelForCausalLM.from_pretrained(home, attn_implementation="eager", output_attentions=True)
    names |= {"tokenizer": tokenizer, "model": model, "inputs": tokenizer(TEXT, return_tensors="pt")}
    exec(block_of("from-bertviz.md", "In bertviz:"), names)
    assert len(names["outputs"].attentions) == 2
