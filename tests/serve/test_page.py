"""The page that is a whole trace: what is in it gives the trace's numbers again, and it is small enough to be sent."""

import base64
import json
import math
import random
import re
import string
import zlib

import numpy as np
import pytest
import torch

import clearhead as ch
from clearhead.attention.heads import Heads
from clearhead.attention.masks import window
from clearhead.errors import OptionError, RunError
from clearhead.model import presets
from clearhead.model.blocks import AttentionSpec
from clearhead.model.outputs import Blanks
from clearhead.model.presets import Size
from clearhead.serve import page
from clearhead.serve.page import PLACE, page_of
from clearhead.serve.questions.trace import AskTrace, meta_of
from clearhead.serve.traced import Traced
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.survey import View, clearest, survey
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run
from clearhead.training.tasks import Fill, Generate, Translate
from clearhead.training.tracing import trace

SOURCE, TARGET = "vier und <zwanzig>", "twenty-four </script>"
TEXT = "".join(random.Random(0).choices(string.ascii_letters, k=127))


class Argmax(ch.weighting.Weighting):
    """The root of what a score is above the least of its row, as a share. A user's own: its name says nothing."""

    def weigh(self, masked, allowed):
        least = masked.masked_fill(~allowed, float("inf")).amin(-1, keepdim=True)
        roots = (masked - least).clamp(min=0).sqrt().masked_fill(~allowed, 0)
        return roots / roots.sum(-1, keepdim=True).clamp(min=1e-9)


@pytest.fixture(autouse=True)
def template(monkeypatch, tmp_path, one_thread):
    """A page that is built, and of which little is left."""
    path = tmp_path / "page.html"
    path.write_text(f"<html>é{PLACE}</script><p>after</p></html>", encoding="utf-8")
    monkeypatch.setattr(page, "TEMPLATE", path)
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


def traced(run, source, target=None, edits=()):
    wanted = AskTrace(source=source, target=target, step=0)
    return Traced(wanted, run, trace(run, source, target, edits=edits))


def made(one, exact=None):
    found = survey(one.trace)
    return page_of(one, found, view=clearest(found), exact=exact)


def data_of(text):
    """What a browser reads from the page."""
    return json.loads(re.search(f"{re.escape(PLACE)}(.*?)</script>", text, re.DOTALL)[1], parse_constant=pytest.fail)


def unpacked(text, dtype, shape):
    return torch.from_numpy(np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape).copy())


def vectors(text, site, n):
    return unpacked(text, "<f4", (site.n_heads, n, -1))


def matrices(text, site):
    return vectors(text, site, site.n_query)


def allowed_of(exact, site):
    shape = (site.n_heads, site.n_query, site.n_key)
    if "allowed" not in exact:
        return torch.ones(shape, dtype=torch.bool)
    packed = np.frombuffer(zlib.decompress(base64.b64decode(exact["allowed"])), np.uint8)
    return torch.from_numpy(np.unpackbits(packed, count=math.prod(shape), bitorder="little").reshape(shape)).bool()


def again(exact, site):
    """The arithmetic as web/src/lib/arithmetic.ts does it, from what the page holds: weights and contexts."""
    query, key = vectors(exact["query"], site, site.n_query), vectors(exact["key"], site, site.n_key)
    score = matrices(exact["score"], site) if "score" in exact else query @ key.mT
    masked = score * torch.tensor(exact["scale"])[:, None, None]
    masked = masked + matrices(exact["bias"], site) if "bias" in exact else masked
    allowed = allowed_of(exact, site)
    weighting = exact["weighting"]
    if weighting is None:
        weight = matrices(exact["weight"], site)
        return weight, weight @ vectors(exact["value"], site, site.n_key)
    masked = masked.masked_fill(~allowed, 0 if weighting["kind"] == "kernelized" else float("-inf"))
    match weighting["kind"]:
        case "softmax":
            weight = (masked / weighting["temperature"]).softmax(-1)
        case "argmax":
            weight = torch.nn.functional.one_hot(masked.argmax(-1), site.n_key).float()
        case "kernelized":
            weight = masked / masked.sum(-1, keepdim=True)
        case "sigmoid":
            weight = (masked - allowed.sum(-1, keepdim=True).log()).sigmoid()
        case "sparsemax":
            weight = site.weighting.weigh(masked[None], allowed[None])[0]
    return weight, weight @ vectors(exact["value"], site, site.n_key)


@pytest.mark.parametrize(
    "attention",
    [
        AttentionSpec(heads=Heads(4, kv=2)),
        AttentionSpec(heads=Heads(4), weighting=ch.weighting.Softmax(temperature=2.0)),
        AttentionSpec(heads=Heads(4), similarity=ch.similarity.Cosine()),
        AttentionSpec(heads=Heads(4), similarity=ch.similarity.Additive(8)),
        AttentionSpec(heads=Heads(4), weighting=ch.weighting.Argmax()),
        AttentionSpec(heads=Heads(4), weighting=ch.weighting.Kernelized("elu")),
        AttentionSpec(heads=Heads(4), weighting=ch.weighting.Sigmoid()),
        AttentionSpec(heads=Heads(4), weighting=ch.weighting.Sparsemax()),
        AttentionSpec(heads=Heads(4), weighting=Argmax()),
        AttentionSpec(heads=Heads(4), position=ch.positions.Rotary()),
        AttentionSpec(heads=Heads(4), position=ch.positions.ALiBi()),
        AttentionSpec(heads=Heads(4), mask=window(2)),
    ],
    ids=lambda spec: next(
        (
            type(part).__name__ + ("" if type(part).__module__.startswith("clearhead") else " of a user")
            for part in (spec.similarity, spec.weighting, spec.position, spec.mask)
            if part
        ),
        "softmax",
    ),
)
def test_what_the_page_holds_gives_every_number_again(tokenizer, tmp_path, attention):
    one = traced(translating(tokenizer, tmp_path, attention=attention), SOURCE, TARGET)
    data = data_of(made(one).text)
    assert list(data["weights"]) == list(one.trace.sites)
    assert set(data["exact"]) == set(one.trace.sites)
    for name, site in one.trace.sites.items():
        wanted = torch.stack([head.weight for head in site.head])
        weight, context = again(data["exact"][name], site)
        torch.testing.assert_close(weight, wanted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(context, site.context, atol=1e-5, rtol=1e-4)
        eighth = unpacked(data["weights"][name], np.uint8, wanted.shape)
        torch.testing.assert_close(eighth / 255, wanted.clamp(0, 1), atol=0.5 / 255 + 1e-6, rtol=0)


def test_the_page_tells_masked_cells_of_every_site(tokenizer, tmp_path):
    one = traced(translating(tokenizer, tmp_path), SOURCE, TARGET)
    masked = data_of(made(one, exact=[]).text)["allowed"]
    for name, site in one.trace.sites.items():
        wanted = site.head[1].allowed(0, site.n_query)
        assert (name in masked) == (not wanted.all())
        if name in masked:
            packed = np.frombuffer(zlib.decompress(base64.b64decode(masked[name])), np.uint8)
            found = np.unpackbits(packed, count=wanted.numel(), bitorder="little").reshape(wanted.shape)
            assert np.array_equal(found, wanted.numpy())
    assert "decoder.0.attention" in masked


def test_the_page_holds_queries_and_keys_before_their_turn(tokenizer, tmp_path):
    attention = AttentionSpec(heads=Heads(4, kv=2), position=ch.positions.Rotary())
    one = traced(translating(tokenizer, tmp_path, attention=attention), SOURCE, TARGET)
    for name, exact in data_of(made(one).text)["exact"].items():
        site, turn = one.trace[name], exact["turn"]
        cell = site.head[3].cell(2, 1).turn
        for role, n, place in (("query", site.n_query, 2), ("key", site.n_key, 1)):
            assert vectors(turn[role], site, n)[3, place].tolist() == pytest.approx(getattr(cell, role))
            angles = unpacked(turn[f"{role}_angles"], "<f4", (n, -1))
            assert angles[place].tolist() == pytest.approx(getattr(cell, f"{role}_angles"), abs=1e-6)
            assert turn[f"{role}_positions"][place] == getattr(cell, f"{role}_position")
        assert [tuple(pair) for pair in turn["pairs"]] == cell.pairs


def test_the_rest_is_as_the_explorer_gives_it(tokenizer, tmp_path):
    one = traced(translating(tokenizer, tmp_path), SOURCE, TARGET)
    data = data_of(made(one).text)
    assert set(data) == {"version", "run", "meta", "weights", "allowed", "exact", "readings", "lens", "stream", "boxes"}
    assert data["version"] == 1
    assert data["meta"] == json.loads(json.dumps(meta_of(one)))
    assert str(tmp_path.parent) not in json.dumps(data)
    assert list(data["stream"]) == ["encoder", "decoder"]
    norm = data["stream"]["decoder"]["rows"][-1]
    assert norm["norm"] == pytest.approx(one.trace.value(norm["name"]).norm(dim=-1).tolist(), rel=1e-5)
    assert [len(layer["rows"]) for layer in data["lens"]["layers"]] == [len(one.trace.sides["decoder"].ids)] * 3
    assert list(data["readings"]) == list(one.trace.sites)


@pytest.mark.slow
def test_boxes_have_the_numbers_of_the_last_tokens_as_far_as_there_is_room(tokenizer, tmp_path, monkeypatch):
    one = traced(translating(tokenizer, tmp_path), SOURCE, TARGET)
    data = data_of(made(one).text)["boxes"]
    for side, held in data.items():
        n = len(one.trace.sides[side].ids)
        assert set(held["tokens"]) == set(map(str, range(n)))
        values = {value.name: value for value in one.boxes.values.values() if value.name.startswith(f"{side}.")}
        assert set(held["shared"]) | set(held["widths"]) == {name for name in values if not values[name].per_head}
        for name, text in held["shared"].items():
            wanted = one.trace.value(name).detach().float()
            assert torch.equal(unpacked(text, np.float32, wanted.shape), wanted)
        vectors = unpacked(held["tokens"]["1"], np.float32, -1).split(list(held["widths"].values()))
        for name, vector in zip(held["widths"], vectors, strict=True):
            torch.testing.assert_close(vector, one.trace.value(name)[1].detach().float(), atol=1e-5, rtol=1e-4)
    monkeypatch.setattr(page, "BOXES", 60_000)
    fewer = data_of(made(one).text)["boxes"]
    for side, held in fewer.items():
        last = len(one.trace.sides[side].ids) - 1
        assert 0 < len(held["tokens"]) < last
        assert str(last) in held["tokens"]


def test_nothing_in_it_ends_the_script_and_the_rest_of_the_page_stands(tokenizer, tmp_path):
    text = made(traced(translating(tokenizer, tmp_path), SOURCE, TARGET)).text
    assert text.startswith(f"<html>é{PLACE}{{")
    assert text.endswith("}</script><p>after</p></html>")
    assert text.count("<") == 6
    assert data_of(text)["meta"]["target"].endswith("</script>")


@pytest.mark.slow
def test_chosen_sites_are_exact_and_no_other(tokenizer, tmp_path):
    one = traced(translating(tokenizer, tmp_path), SOURCE, TARGET)
    found = made(one, exact=["decoder.1.cross", "encoder.0.attention"])
    assert found.exact == list(data_of(found.text)["exact"]) == ["decoder.1.cross", "encoder.0.attention"]
    assert data_of(made(one, exact=[]).text)["exact"] == {}


@pytest.mark.slow
def test_as_many_are_exact_as_there_is_room_for_the_one_that_is_shown_first(tokenizer, tmp_path, monkeypatch):
    one = traced(translating(tokenizer, tmp_path), SOURCE, TARGET)
    found = survey(one.trace)
    least = len(made(one, exact=[]).text.encode())
    seen = []
    for room in (least, least + 20_000, least + 45_000):
        monkeypatch.setattr(page, "ROOM", room)
        given = page_of(one, found, view=View("decoder.0.cross", 1))
        assert len(given.text.encode()) <= room
        seen.append(given.exact)
    assert seen[0] == []
    assert seen[1][0] == seen[2][0] == "decoder.0.cross"
    assert len(seen[1]) < len(seen[2])
    order = sorted(found, key=lambda name: -max(found[name].information))
    assert seen[2][1:] == [name for name in order if name != "decoder.0.cross"][: len(seen[2]) - 1]


@pytest.mark.slow
def test_a_weighting_of_the_users_own_is_told_by_its_own_sentence_and_its_weights(tokenizer, tmp_path):
    one = traced(translating(tokenizer, tmp_path, attention=AttentionSpec(heads=Heads(4), weighting=Argmax())), SOURCE)
    data = data_of(made(one).text)
    for site in data["meta"]["sites"]:
        assert site["arithmetic"]["kind"] == "rows"
        assert site["arithmetic"]["rule"] == "The root of what a score is above the least of its row, as a share"
        assert data["exact"][site["name"]]["weighting"] is None
    cell = one.trace["encoder.0.attention"].head[0].cell(0, 1)
    assert (cell.kind, cell.exponential, cell.total) == ("rows", None, None)


@pytest.mark.slow
def test_what_an_edit_changed_is_not_exact(tokenizer, tmp_path):
    run = translating(tokenizer, tmp_path)
    off = ch.Edit(at="decoder.0.cross", step="context", head=1, times=0.0)
    one = traced(run, SOURCE, TARGET, edits=[off])
    assert set(one.trace.sites) - set(made(one).exact) == {"decoder.0.cross"}
    with pytest.raises(OptionError, match=r"decoder\.0\.cross: a page cannot hold its arithmetic"):
        made(one, exact=["decoder.0.cross"])


def test_a_page_that_is_not_built_is_told(tokenizer, tmp_path, template):
    one = traced(translating(tokenizer, tmp_path), SOURCE, TARGET)
    template.write_text("<html></html>", encoding="utf-8")
    with pytest.raises(RunError, match=r"has no place for the numbers; run `make web`"):
        made(one)
    template.unlink()
    with pytest.raises(RunError, match=r"the page is not built: there is no .*page\.html; run `make web`"):
        made(one)


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
    tokenizer, tmp_path, template, monkeypatch, *, kind, sharpness, capsys
):
    """Causal or not, and with weights that are alike or differ."""
    monkeypatch.setattr(Generate, "opened", True)
    template.write_text("<html>" + "x" * 300_000 + PLACE + "</script></html>", encoding="utf-8")
    one = traced(large(kind, tokenizer, tmp_path, sharpness), TEXT if kind == "decoder" else TEXT[:126])
    [n] = {len(side.ids) for side in one.trace.sides.values()}
    given = made(one)
    bytes_of = len(given.text.encode())
    with capsys.disabled():
        print(f"\n{kind}, {n} tokens, sharpness {sharpness}: {bytes_of / 1e6:.2f} MB, exact: {given.exact}")
    assert n == 128
    assert len(data_of(given.text)["weights"]) == 12
    assert given.exact
    assert bytes_of < 5_000_000
