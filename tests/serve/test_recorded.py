"""The saved page of one text: the model where it can be, else recorded answers that are the explorer's own."""

import base64
import json
import random
import re
import string
import zlib

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.errors import OptionError, RunError
from clearhead.experiments.tracing import trace
from clearhead.model import presets
from clearhead.model.blocks import AttentionSpec
from clearhead.model.outputs import Blanks
from clearhead.model.presets import Size
from clearhead.serve import live, recorded
from clearhead.serve.live import PLACE, WEIGHTS
from clearhead.serve.packing import script_json
from clearhead.serve.questions.heads import AskReadings
from clearhead.serve.questions.trace import AskTrace, meta_of
from clearhead.serve.questions.weights import AskThumbs
from clearhead.serve.recorded import saved_page
from clearhead.serve.traced import Traced
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.survey import View, clearest, survey
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run
from clearhead.training.tasks import Fill, Generate, Translate

SOURCE, TARGET = "vier und <zwanzig>", "twenty-four </script>"
TEXT = "".join(random.Random(0).choices(string.ascii_letters, k=127))


class Root(ch.weighting.Weighting):
    """The root of what a score is above the least of its row, as a share: a user's own, which no page computes."""

    def weigh(self, masked, allowed):
        least = masked.masked_fill(~allowed, float("inf")).amin(-1, keepdim=True)
        roots = (masked - least).clamp(min=0).sqrt().masked_fill(~allowed, 0)
        return roots / roots.sum(-1, keepdim=True).clamp(min=1e-9)


@pytest.fixture(autouse=True)
def template(monkeypatch, tmp_path):
    """A page that is built, and of which little is left."""
    path = tmp_path / "live.html"
    path.write_text(f"<html>é{PLACE}</script>{WEIGHTS}</script><p>after</p></html>", encoding="utf-8")
    monkeypatch.setattr(live, "TEMPLATE", path)
    return path


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([SOURCE, TARGET, TEXT], "char")


def translating(tokenizer, folder, **parts):
    """A run, untrained, of a model with these parts."""
    torch.manual_seed(0)
    task = Translate(tokenizers={"source": tokenizer, "target": tokenizer}, context=40)
    spec = presets.classic(tokenizer.vocabulary, size=Size(2, 32, 4, 2, 48), **parts)
    return Run(RunFolder(folder), task, spec.build().eval(), 0)


def foreign(tokenizer, folder):
    return translating(tokenizer, folder, attention=AttentionSpec(weighting=Root()))


def traced(run, source, target=None):
    return Traced(AskTrace(source=source, target=target, step=0), run, trace(run, source, target))


def made(one):
    return saved_page(one, clearest(survey(one.trace)))


def data_of(text):
    """What a browser reads from the page."""
    return json.loads(re.search(f"{re.escape(PLACE)}(.*?)</script>", text, re.DOTALL)[1], parse_constant=pytest.fail)


def unpacked(answer):
    numbers = np.frombuffer(zlib.decompress(base64.b64decode(answer["bytes"])), np.uint8)
    shape = [answer[name] for name in ("heads", "rows", "columns") if name in answer]
    return torch.from_numpy(numbers.reshape(shape).copy())


def test_a_model_that_a_page_can_run_is_in_it_and_opens_on_the_text(tokenizer, tmp_path):
    one = traced(translating(tokenizer, tmp_path), SOURCE, TARGET)
    page, reason = saved_page(one, View("decoder.0.cross", None))
    data = data_of(page.text)
    assert (reason, page.dtype) == (None, "float32")
    assert data["run"]["examples"] == [{"source": SOURCE}]
    assert data["run"]["opening"] == {"site": "decoder.0.cross", "head": "mean", "target": TARGET}
    assert page.weights
    assert data["plan"]
    assert page.text.count("</script>") == 2, "what is in the texts ends no script"
    assert page.text.endswith("<p>after</p></html>")
    assert "target" not in data_of(made(traced(one.run, SOURCE)).page.text)["run"]["opening"]


def test_the_weights_of_a_part_that_no_page_computes_are_recorded(tokenizer, tmp_path):
    one = traced(foreign(tokenizer, tmp_path), SOURCE, TARGET)
    page, reason = made(one)
    assert page.dtype == "uint8"
    assert re.search(r"a page that runs by itself cannot compute .*Root", reason)
    answers = data_of(page.text)["answers"]
    for name, site in one.trace.sites.items():
        for head in site.head:
            at = {"site": name, "step": "weight"} | ({"head": head.index} if head.index else {})
            weight = unpacked(answers[f"tile {json.dumps(at, sort_keys=True, separators=(',', ':'))}"]) / 255
            torch.testing.assert_close(weight, head.weight, atol=0.51 / 255, rtol=0)
            may = unpacked(
                answers[f"tile {json.dumps(at | {'step': 'allowed'}, sort_keys=True, separators=(',', ':'))}"]
            )
            assert torch.equal(may == 255, head.allowed(0, site.n_query))


def test_the_rest_is_as_the_explorer_gives_it(tokenizer, tmp_path):
    one = traced(foreign(tokenizer, tmp_path), SOURCE, TARGET)
    data = data_of(made(one).page.text)
    answers, of = data["answers"], one.request.id
    assert answers["trace"] == json.loads(script_json(meta_of(one)))
    assert {side for side in ("encoder", "decoder") if f'stream {{"side":"{side}"}}' in answers} == set(one.trace.sides)
    for name in one.trace.sites:
        [found] = answers[f'readings {{"site":"{name}"}}'].values()
        [wanted] = AskReadings(trace=of, site=name).answer_of(one).values()
        assert found["entropy"] == pytest.approx(wanted["entropy"], rel=1e-5)
        assert torch.equal(
            unpacked(answers[f'thumbs {{"site":"{name}"}}']), AskThumbs(trace=of, site=name).answer_of(one)
        )
    assert str(tmp_path) not in json.dumps(data)


def test_a_long_text_has_tiles_of_every_level(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "TILE", 8)
    site = traced(foreign(tokenizer, tmp_path), SOURCE, TARGET).trace["decoder.0.cross"]
    places = list(recorded.tile_places(site))
    assert places[-1] == (2, 0, 0)
    for level in range(3):
        size = 8 << level
        rows, columns = -(-site.n_query // size), -(-site.n_key // size)
        assert places.count((level, rows - 1, columns - 1)) == 1
        assert sum(place[0] == level for place in places) == rows * columns
    monkeypatch.setattr(recorded, "MOST_WEIGHTS", 100)
    with pytest.raises(OptionError, match=r"weights for this text, and a page holds 100 at most: save a shorter text"):
        made(traced(foreign(tokenizer, tmp_path), SOURCE, TARGET))


def test_a_trace_that_is_not_of_the_text_alone_is_recorded(tokenizer, tmp_path):
    """As of a pair of texts: a page would show what it makes of one."""
    run = translating(tokenizer, tmp_path)
    page, reason = made(Traced(AskTrace(source="vier", target=TARGET, step=0), run, trace(run, SOURCE, TARGET)))
    assert page.dtype == "uint8"
    assert "this trace is of something else" in reason


def test_a_page_that_is_not_built_is_told(tokenizer, tmp_path, template):
    page, _ = made(traced(translating(tokenizer, tmp_path), SOURCE, TARGET))
    template.write_text("<html></html>", encoding="utf-8")
    with pytest.raises(RunError, match=r"has no place for the numbers; run `make web`"):
        _ = page.text
    template.unlink()
    with pytest.raises(RunError, match=r"the page is not built: there is no .*live\.html; run `make web`"):
        _ = page.text


def large(kind, tokenizer, folder, sharpness):
    """Twelve layers of twelve heads at d_model 768, with queries and keys this many times as long as they begin."""
    size = Size(12, 768, 12, 12, 64)
    if kind == "decoder":
        task = Generate(tokenizers={"text": tokenizer}, context=128)
        model = presets.gpt2(size, vocabulary=1000, length=128).build().eval()
    else:
        task = Fill(tokenizers={"text": tokenizer}, context=128)
        model = presets.bert(size, vocabulary=1000, length=128, output=Blanks()).build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attention.query" in name or "attention.key" in name:
                parameter.mul_(sharpness)
    return Run(RunFolder(folder), task, model, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sharpness"),
    [
        ("encoder", 2.5),
        pytest.param("decoder", 1.0, marks=pytest.mark.thorough),
        pytest.param("encoder", 1.0, marks=pytest.mark.thorough),
    ],
)
def test_a_page_of_the_size_of_gpt_2_and_bert_on_128_tokens_is_under_5_mb(
    tokenizer, tmp_path, template, monkeypatch, *, kind, sharpness
):
    """Causal or not, and with weights that are alike or differ."""
    monkeypatch.setattr(Generate, "opened", True)
    template.write_text("x" * 700_000 + f"{PLACE}</script>{WEIGHTS}</script>", encoding="utf-8")
    one = traced(large(kind, tokenizer, tmp_path, sharpness), TEXT if kind == "decoder" else TEXT[:126])
    [n] = {len(side.ids) for side in one.trace.sides.values()}
    page, reason = made(one)
    assert n == 128
    assert "parameters, and a page that runs by itself holds 5,000,000 at most" in reason
    assert len(page.text.encode()) < 5_000_000
