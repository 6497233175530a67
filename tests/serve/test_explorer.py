"""The explorer over HTTP: every question of the page, on runs of every task; its numbers are the trace's."""

import dataclasses
import json
import math
import os
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from clearhead.attention.weighting import Argmax
from clearhead.decoding import Greedy
from clearhead.decoding.generating import eval_mode
from clearhead.experiments.rasp_run import compile_to_run
from clearhead.experiments.tracing import trace
from clearhead.model import presets
from clearhead.model.embedding import Embedding
from clearhead.model.outputs import Classes
from clearhead.rasp import PROGRAMS
from clearhead.serve.budget import AnswerBudget, TooMuchError
from clearhead.serve.explorer import OTHERS_SHARE, TRACES, Explorer, model_bytes, side_by_side, with_own_modules
from clearhead.serve.questions.trace import AskTrace
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.edits import Edit, Swap
from clearhead.tracing.head_metrics import compare_spaces, effects, lens, readings
from clearhead.tracing.recording import recording
from clearhead.tracing.sentence import creature_exchange
from clearhead.tracing.sequence_diagram import MOST_KEYS, draw_sequence, weight_text
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run, load
from clearhead.training.tasks import ClassifyPairs
from clearhead.training.tasks.texts import Framing
from tests.serve.asking import ask
from tests.serve.conftest import Client, serving

TEXTS = {
    "translator": "zwei null vier",
    "documents": "the cat eats",
    "stretch": "the cow eats the plum",
    "filler": "the <mask> eats the <mask>, größer",
    "classifier": "red plum",
}


SLOTS = ("attention", "cross")


@pytest.fixture(scope="module")
def runs(translator, documents, stretch, filler, classifier):
    return {"translator": translator, "documents": documents, "stretch": stretch, "filler": filler,
            "classifier": classifier}  # fmt: skip


@pytest.fixture(params=TEXTS)
def case(request, runs, client_of):
    """A client of a run's server, the run, a text, and what the server says of it."""
    run, text = runs[request.param], TEXTS[request.param]
    client = client_of(run)
    status, meta = client.post("api/trace", {"source": text})
    assert status == 200, meta
    return client, run, text, meta


@pytest.fixture
def translating(translator, client_of):
    client = client_of(translator)
    _, meta = client.post("api/trace", {"source": TEXTS["translator"]})
    return client, meta["id"]


def numbers(reply):
    """The array of a binary reply."""
    status, (headers, body) = reply
    assert status == 200
    return np.frombuffer(body, "<f4").reshape(int(headers["X-Rows"]), int(headers["X-Columns"]))


def finite(values):
    """As JSON tells numbers."""
    return [value if math.isfinite(value) else None for value in values]


def test_what_a_run_is(runs, client_of):
    kinds = {"translator": "encoder-decoder", "documents": "decoder", "stretch": "decoder", "filler": "encoder",
             "classifier": "encoder"}  # fmt: skip
    for name, run in runs.items():
        status, facts = client_of(run).get("api/run")
        assert status == 200
        assert (facts["task"], facts["step"], facts["kind"]) == (run.task.name, run.step, kinds[name])
        assert facts["parameters"] == sum(one.numel() for one in run.model.parameters())
        assert facts["steps"] == [60]
        assert facts["training"] is False
        assert [side["side"] for side in facts["sides"]] == kinds[name].split("-")
        assert facts["sides"][0]["layers"][0]["attention"]["n_heads"] == 2
        assert ("cross" in facts["sides"][-1]["layers"][0]) == (name == "translator")
        assert facts["sides"][0]["layers"][0]["feed_forward"].startswith("32 → 64 → 32 ")
        assert facts.get("labels") == (["beast", "fruit"] if name == "classifier" else None)


@pytest.mark.slow
def test_every_example_of_a_run_can_be_traced(runs, client_of):
    for run in runs.values():
        client = client_of(run)
        examples = client.get("api/run")[1]["examples"]
        assert examples
        for example in examples:
            status, meta = client.post("api/trace", example)
            assert status == 200, meta


@pytest.mark.slow
def test_examples_come_from_the_log_then_from_the_data_then_from_the_vocabulary(runs, tmp_path):
    for name, run in runs.items():
        folder = tmp_path / name
        shutil.copytree(run.folder.path, folder)
        logged = ask(Explorer(load(folder, device="cpu")), "run")["examples"]
        (folder / "metrics.jsonl").unlink()
        stored = ask(Explorer(load(folder, device="cpu")), "run")["examples"]
        shutil.rmtree(folder / "data")
        explorer = Explorer(load(folder, device="cpu"))
        made_up = ask(explorer, "run")["examples"]
        assert len(made_up) == 1
        assert logged
        assert len(stored) >= (2 if name != "stretch" else 1)
        for example in (*logged, *stored, *made_up):
            assert ask(explorer, "trace", example)["sites"]


def test_the_meta_of_a_trace(case):
    _, run, text, meta = case
    made = trace(run, text)
    assert meta["source"] == text
    assert meta["step"] == run.step
    assert meta["kind"] == made.kind
    assert meta["names"] == made.names
    assert {name: (side["ids"], side["tokens"]) for name, side in meta["sides"].items()} == {
        name: (side.ids, side.tokens) for name, side in made.sides.items()
    }
    assert [site["name"] for site in meta["sites"]] == list(made.sites)
    for site in meta["sites"]:
        own = made[site["name"]]
        assert (site["n_query"], site["n_key"], site["d_head"]) == (own.n_query, own.n_key, own.d_head)
        assert site["scale"] == [head.scale for head in own.head]
        assert (site["edited"], site["why"]) == (False, "")
        assert site["key_side"] == ("encoder" if site["slot"] == "cross" else site["side"])
    for told, row in zip(meta["candidates"], made.candidates, strict=True):
        assert [(one["id"], one["text"]) for one in told] == [(one.id, one.text) for one in row]
        assert [one["p"] for one in told] == pytest.approx([math.exp(one.log_prob) for one in row])


def test_what_a_run_answers(runs, client_of):
    def answer(name, **more):
        return client_of(runs[name]).post("api/trace", {"source": TEXTS[name], **more})[1]["answer"]

    text = TEXTS["translator"]
    assert answer("translator") == runs["translator"].translate([text], beam=1)[0]
    assert answer("classifier") == runs["classifier"].classify([TEXTS["classifier"]])[0].label
    assert answer("filler") == runs["filler"].fill([TEXTS["filler"]])[0].text
    assert answer("documents") == trace(runs["documents"], TEXTS["documents"]).candidates[-1][0].text


def test_a_given_target_is_the_target(translator, client_of):
    client = client_of(translator)
    _, as_text = client.post("api/trace", {"source": "zwei", "target": "31"})
    ids = translator.task.tokenizers["target"].encode("31")
    _, as_ids = client.post("api/trace", {"source": "zwei", "target": ids})
    assert as_text["target"] == as_ids["target"] == "31"
    assert as_text["sides"] == as_ids["sides"]
    assert as_text["id"] != as_ids["id"]


def test_the_same_request_has_the_same_id_and_is_made_once(translator, client_of, monkeypatch):
    client = client_of(translator)
    _, first = client.post("api/trace", {"source": "drei"})
    monkeypatch.setattr("clearhead.serve.questions.trace.trace", None)
    assert client.post("api/trace", {"source": "drei", "target": None, "edits": [], "step": None}) == (200, first)


@pytest.mark.parametrize("step", ["score", "scaled", "masked", "weight"])
def test_a_tile_is_the_heads_matrix(case, step):
    client, run, text, meta = case
    made = trace(run, text)
    for name, site in made.sites.items():
        asked = {"site": name, "step": step, "level": 0, "row": 0, "column": 0}
        for head in (0, 1):
            tile = numbers(client.get(f"api/trace/{meta['id']}/tile", head=head, **asked))
            torch.testing.assert_close(torch.from_numpy(tile.copy()), getattr(site.head[head], step).cpu())
        mean = numbers(client.get(f"api/trace/{meta['id']}/tile", head="mean", **asked))
        expected = torch.stack([getattr(head, step) for head in site.head]).mean(0)
        torch.testing.assert_close(torch.from_numpy(mean.copy()), expected)


def test_a_coarse_tile_has_the_largest_of_each_square(translating, translator):
    client, name = translating
    weight = trace(translator, TEXTS["translator"])["encoder.0.attention"].head[1].weight
    tile = numbers(client.get(f"api/trace/{name}/tile", site="encoder.0.attention", head=1, step="weight", level=2))
    assert tile.shape == (math.ceil(len(weight) / 4),) * 2
    assert tile[1, 2] == pytest.approx(weight[4:8, 8:12].max().item(), abs=1e-6)


def test_thumbnails_are_the_weights_in_bytes(case):
    client, run, text, meta = case
    for name, site in trace(run, text).sites.items():
        status, (headers, body) = client.get(f"api/trace/{meta['id']}/thumbs", site=name)
        assert status == 200
        shape = tuple(int(headers[f"X-{axis}"]) for axis in ("Heads", "Rows", "Columns"))
        assert shape == (site.n_heads, site.n_query, site.n_key)
        masked = torch.stack([~head.allowed(0, site.n_query) for head in site.head])
        expected = torch.stack([head.weight for head in site.head]).sqrt().mul(254).masked_fill(masked, 255)
        found = torch.frombuffer(bytearray(body), dtype=torch.uint8).reshape(shape)
        assert torch.equal(found == 255, masked)
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.5 + 254 * 1e-5)


def test_a_tile_of_the_mask_tells_masked_cells_from_a_weight_of_0(case):
    client, run, text, meta = case
    made = trace(run, text)
    facts = {site["name"]: site["arithmetic"] for site in meta["sites"]}
    for name, site in made.sites.items():
        allowed = site.head[1].allowed(0, site.n_query)
        for head in (1, "mean"):
            tile = numbers(client.get(f"api/trace/{meta['id']}/tile", site=name, head=head, step="allowed"))
            assert np.array_equal(tile, allowed.float().numpy())
        assert facts[name]["masks"] or bool(allowed.all())
        coarse = numbers(client.get(f"api/trace/{meta['id']}/tile", site=name, head=1, step="allowed", level=1))
        assert coarse[0, 0] == allowed[:2, :2].any().item()


def test_a_site_says_its_arithmetic_and_names_its_parts_in_words(case):
    """No class name is shown to people: "no mask" and not "Everything"."""
    _, run, text, meta = case
    made = trace(run, text)
    for site in meta["sites"]:
        own, words, facts = made[site["name"]], site["words"], site["arithmetic"]
        assert words["similarity"] == "scaled dot product"
        assert words["weighting"] == "softmax"
        assert words["position"] in ("no positions", "rotary positions")
        assert words["mask"] in ("no mask", "causal mask", "padding mask", "causal mask and padding mask")
        assert (facts["kind"], facts["formula"]) == ("softmax", "query · key")
        assert (facts["rule"], facts["blocked"]) == ("softmax(score / temperature)", None)
        assert facts["turns"] == own.position.turns == (words["position"] == "rotary positions")
        assert facts["causal"] == ("causal" in words["mask"])


def test_nothing_is_said_of_a_turn_where_nothing_is_turned(translator, client_of):
    client = client_of(translator)
    _, meta = client.post("api/trace", {"source": TEXTS["translator"]})
    asked = {"site": "encoder.0.attention", "head": 0, "query": 0, "key": 0}
    assert client.get(f"api/trace/{meta['id']}/cell", **asked)[1]["turn"] is None


def test_a_row_and_a_column(case):
    client, run, text, meta = case
    for name, site in trace(run, text).sites.items():
        head, query, key = site.head[1], site.n_query - 1, 0
        asked = {"site": name, "head": 1}
        status, row = client.get(f"api/trace/{meta['id']}/row", query=query, **asked)
        assert status == 200
        steps = head.rows(query, query + 1)
        for step in ("query", "score", "scaled", "masked", "weight", "context"):
            assert row[step] == finite(getattr(steps, step)[0].tolist())
        assert row["allowed"] == [value is not None for value in row["masked"]]
        _, column = client.get(f"api/trace/{meta['id']}/column", key=key, **asked)
        assert column["weight"] == pytest.approx(head.weight[:, key].tolist(), abs=1e-6)
        _, mean = client.get(f"api/trace/{meta['id']}/row", site=name, head="mean", query=query)
        expected = torch.stack([one.weight for one in site.head]).mean(0)
        assert mean == {"weight": pytest.approx(expected[query].tolist(), abs=1e-6)}
        _, mean = client.get(f"api/trace/{meta['id']}/column", site=name, head="mean", key=key)
        assert mean["weight"] == pytest.approx(expected[:, key].tolist(), abs=1e-6)


def test_a_cell_is_the_arithmetic_in_full(case):
    client, run, text, meta = case
    for name, site in trace(run, text).sites.items():
        query, key = site.n_query - 1, site.n_key - 1
        status, cell = client.get(f"api/trace/{meta['id']}/cell", site=name, head=1, query=query, key=key)
        assert status == 200
        own = dataclasses.asdict(site.head[1].cell(query, key))
        assert {field: cell[field] for field in own} == own
        assert sum(cell["products"]) == pytest.approx(cell["score"], abs=1e-5)
        assert cell["weight"] == pytest.approx(cell["exponential"] / cell["total"], abs=1e-6)
        assert (cell["n_query"], cell["n_key"]) == (site.n_query, site.n_key)


def test_a_cell_that_is_not_allowed_has_null_for_minus_infinity(documents, client_of):
    client = client_of(documents)
    _, meta = client.post("api/trace", {"source": TEXTS["documents"]})
    asked = {"site": "decoder.0.attention", "head": 0, "query": 0, "key": 1}
    _, cell = client.get(f"api/trace/{meta['id']}/cell", **asked)
    assert (cell["allowed"], cell["masked"], cell["weight"]) == (False, None, 0.0)


def test_the_input_of_a_cell_is_what_its_query_was_made_of(case):
    """W_Q times it is the query, before it is turned by its position."""
    client, run, text, meta = case
    layers = {path: one for path, one in run.model.named_modules() if path.endswith(("attention", ".cross"))}
    made = trace(run, text)
    with eval_mode(run.model):
        for name, site in made.sites.items():
            prefix = f"{site.side}." if len(made.sides) > 1 else ""
            layer = layers[f"{prefix}stack.blocks.{site.layer}.{site.slot}"]
            query = site.n_query - 1
            _, cell = client.get(f"api/trace/{meta['id']}/cell", site=name, head=1, query=query, key=0)
            mapped = layer.query(torch.tensor(cell["input"])[None, None])
            turned = layer.position.turn(mapped, torch.tensor([query]))[0, 1, 0]
            torch.testing.assert_close(turned, site.head[1].query[query], atol=1e-5, rtol=1e-5)


def test_vectors_of_a_head_and_of_the_stream(case):
    client, run, text, meta = case
    made = trace(run, text)
    for name, site in made.sites.items():
        for role in ("query", "key", "value", "context"):
            found = numbers(client.get(f"api/trace/{meta['id']}/vectors", site=name, head=1, role=role))
            assert np.array_equal(found, getattr(site.head[1], role).numpy())
    for name in made.stream:
        assert np.array_equal(
            numbers(client.get(f"api/trace/{meta['id']}/vectors", name=name)), made.value(name).numpy()
        )


def test_tokens_are_compared_in_three_spaces_as_the_trace_has_them(case):
    client, run, text, meta = case
    made = trace(run, text)
    for name, site in made.sites.items():
        if site.slot == "cross":
            status, found = client.get(f"api/trace/{meta['id']}/spaces", site=name, head=0, places="0")
            assert (status, "choose a self-attention" in found["error"]) == (400, True)
            continue
        places = [site.n_query - 1, 0]
        asked = {"site": name, "head": 1, "places": ",".join(map(str, places))}
        status, found = client.get(f"api/trace/{meta['id']}/spaces", **asked)
        assert status == 200
        own = compare_spaces(made, name, 1, places)
        assert (found["places"], found["tokens"]) == (places, list(own.tokens))
        for space in ("embedding", "query_key", "score", "value"):
            assert np.array_equal(np.array(found[space], np.float32), getattr(own, space).numpy())


def test_a_sequence_diagram_of_every_attention(case):
    client, run, text, meta = case
    for name, site in trace(run, text).sites.items():
        query = site.n_query - 1
        status, found = client.get(f"api/trace/{meta['id']}/sequence", site=name, head=1, query=query)
        assert status == 200
        tree = ElementTree.fromstring(found["svg"])
        weights = [group for group in tree.iter() if group.get("data-arrow", "").startswith("weight ")]
        steps = site.head[1].rows(query, query + 1)
        assert len(weights) >= min(site.n_key, MOST_KEYS)
        for group in weights:
            key = group.get("data-arrow").split()[-1]
            if key != "rest":
                label = group.find("{http://www.w3.org/2000/svg}text").text
                assert label == f"× {weight_text(steps.weight[0, int(key)].item())}"


def test_the_notes_sentence_needs_nothing_of_the_run(translating):
    client, _ = translating
    status, found = client.get("api/sentence")
    assert (status, found["tokens"][found["token"]]) == (200, "creature")
    assert found["svg"] == draw_sequence(creature_exchange(4), standalone=False)
    assert client.get("api/sentence", token=0)[1]["token"] == 0
    status, found = client.get("api/sentence", token=5)
    assert (status, found["error"]) == (400, "the address: token is 5, and must be 0 to 4")


def test_readings_of_every_head(case):
    client, run, text, meta = case
    made = trace(run, text)
    status, found = client.get(f"api/trace/{meta['id']}/readings")
    assert status == 200
    assert list(found) == list(made.sites)
    for name, site in made.sites.items():
        own = readings(made, site)
        assert found[name] == {key: [getattr(one, key) for one in own] for key in found[name]}
        assert client.get(f"api/trace/{meta['id']}/readings", site=name)[1] == {name: found[name]}


def test_readings_of_some_rows(case):
    """Of a short text they are those of all rows; fewer than a few rows would say nothing."""
    client, _, _, meta = case
    address = f"api/trace/{meta['id']}/readings"
    name = meta["sites"][0]["name"]
    assert client.get(address, site=name, rows=64) == client.get(address, site=name)
    status, found = client.get(address, site=name, rows=3)
    assert status == 400
    assert "rows is 3, and must be 64 or more" in found["error"]


def test_of_a_long_text_one_site_is_read_at_a_time(translator):
    asked = Explorer(translator, AnswerBudget(cells=60))
    name = ask(asked, "trace", {"source": "vier", "target": "44"})["id"]
    with pytest.raises(TooMuchError, match=r"reading every weight of all attentions .* ask for one attention"):
        ask(asked, "readings", {}, name)
    assert set(ask(asked, "readings", {"site": "decoder.0.cross"}, name)) == {"decoder.0.cross"}


def test_the_lens_shows_what_each_layer_would_answer(case):
    client, run, text, meta = case
    made = trace(run, text)
    status, found = client.get(f"api/trace/{meta['id']}/lens")
    assert status == 200
    assert found["side"] == made.answer_side
    own = lens(made, run.model)
    assert [layer["name"] for layer in found["layers"]] == [one.name for one in own]
    for layer, one in zip(found["layers"], own, strict=True):
        assert [[each["id"] for each in row] for row in layer["rows"]] == [
            [each.id for each in row] for row in one.rows
        ]
    texts = [[each["text"] for each in row] for row in found["layers"][-1]["rows"]]
    assert texts == [[each["text"] for each in row[:5]] for row in meta["candidates"]]


def test_the_effect_of_a_head_is_what_the_answer_loses_without_it(case):
    client, run, text, meta = case
    made = trace(run, text)
    rows = [torch.tensor([side.ids]) for side in made.sides.values()]

    def forward(changes):
        with recording(run.model, changes):
            return run.model(*rows)

    for name, site in made.sites.items():
        status, found = client.get(f"api/trace/{meta['id']}/effects", site=name)
        assert status == 200
        own = effects(run.model, forward, name, site.n_heads)
        assert found["effects"] == [{"head": one.head, "change": one.change, "kl": one.divergence} for one in own]
        assert any(abs(one["kl"]) > 1e-6 for one in found["effects"])


def test_every_name_of_a_trace_is_in_one_box_with_its_numbers(case):
    """By name, for the last token and the first key, in head 1."""
    client, run, text, meta = case
    made = trace(run, text)
    sides = client.get("api/run")[1]["sides"]
    boxes = [box for side in sides for box in side["boxes"]]
    assert [value["name"] for box in boxes for value in box["values"]] == made.names
    for side in sides:
        token = len(meta["sides"][side["side"]]["ids"]) - 1
        for box in side["boxes"]:
            asked = {"box": box["name"], "token": token, "key": 0, "head": 1 if box["kind"] in SLOTS else 0}
            status, found = client.get(f"api/trace/{meta['id']}/box", **asked)
            assert status == 200, found
            for value in box["values"]:
                whole = made.value(value["name"])
                row = {"key": 0, "query": token}.get(value["rows"], 0)
                wanted = whole if value["rows"] == "none" else whole[1, row] if value["per_head"] else whole[row]
                numbers = torch.tensor([-math.inf if one is None else one for one in found["values"][value["name"]]])
                torch.testing.assert_close(numbers, wanted.float(), rtol=1e-4, atol=1e-5, msg=value["name"])
                assert set(value["operands"].values()) <= set(found["values"])
            if box["kind"] == "output":
                probability = found["values"][f"{side['side']}.output.probability"]
                best = max(range(len(probability)), key=probability.__getitem__)
                assert found["labels"][str(best)] == made.candidates[-1][0].text


def test_a_number_of_a_linear_map_is_a_sum_of_products(case):
    client, _, _, meta = case
    sides = client.get("api/run")[1]["sides"]
    made = [value for side in sides for box in side["boxes"] for value in box["values"] if value["map"]]
    assert {value["map"] for value in made} >= {"W_Q", "W_K", "W_V", "W_O", "W_down"}
    for value in made:
        status, found = client.get(f"api/trace/{meta['id']}/terms", name=value["name"], row=1, unit=1, head=1)
        assert status == 200, found
        total = sum(x * w for x, w in zip(found["x"], found["weight"], strict=True)) + found["bias"]
        assert total == pytest.approx(found["value"], abs=2e-5, rel=1e-4), value["name"]


def test_the_stream_in_numbers(case):
    client, run, text, meta = case
    made = trace(run, text)
    for side in made.sides:
        status, found = client.get(f"api/trace/{meta['id']}/stream", side=side)
        assert status == 200
        names = [name for name in made.stream if name.startswith(f"{side}.")]
        assert [row["name"] for row in found["rows"]] == names
        for row in found["rows"]:
            value = made.value(row["name"])
            assert row["norm"] == pytest.approx(value.norm(dim=-1).tolist(), rel=1e-5)
            cosine = torch.cosine_similarity(value, made.value(f"{side}.embedding.token"), dim=-1)
            assert row["cosine"] == pytest.approx(cosine.tolist(), abs=1e-5)
        assert found["rows"][0]["cosine"] == pytest.approx([1.0] * len(made.sides[side].ids), abs=1e-5)


@pytest.mark.parametrize(
    ("part", "asked", "said"),
    [
        ("box", {"box": "encoder.0.nothing"}, "there is no box called 'encoder.0.nothing'"),
        ("box", {"box": "encoder.0.feed_forward", "token": 99}, "token is 99, and must be 0 to"),
        ("box", {"box": "encoder.0.attention", "head": 7}, "there is no head 7; there are 2"),
        ("box", {"box": "decoder.0.cross", "key": 999}, "there is no row 999"),
        ("terms", {"name": "encoder.0.nothing", "unit": 0}, "there is no 'encoder.0.nothing' in this model"),
        ("terms", {"name": "encoder.0.feed_forward.out", "unit": 999}, "there is no unit 999; there are 32"),
        ("terms", {"name": "encoder.0.feed_forward.hidden", "unit": 0}, "it has no sum of products to show"),
        ("terms", {"name": "encoder.0.feed_forward.hidden", "row": 706637, "unit": 9}, "there is no row 706637"),
    ],
)
def test_what_is_asked_wrongly_of_a_box_is_told(translating, part, asked, said):
    client, name = translating
    status, found = client.get(f"api/trace/{name}/{part}", **asked)
    assert status == 400
    assert said in found["error"]


def test_an_edited_trace(translator, client_of):
    client, text = client_of(translator), TEXTS["translator"]
    edits = [
        {"at": "decoder.0.cross", "step": "context", "head": 1, "times": 0.0},
        {"at": "encoder.0.attention", "step": "score", "head": 0, "query": 2, "key": 3, "to": 5.0},
        {"at": "encoder.0.attention", "step": "allowed", "query": 1, "key": 0, "to": False},
        {"at": "decoder.0.attention", "weighting": "argmax"},
    ]
    status, meta = client.post("api/trace", {"source": text, "target": "204", "edits": edits})
    assert status == 200
    changes = [
        Edit(at="decoder.0.cross", step="context", head=1, times=0.0),
        Edit(at="encoder.0.attention", step="score", head=0, query=2, key=3, to=5.0),
        Edit(at="encoder.0.attention", step="allowed", query=1, key=0, to=False),
        Swap(at="decoder.0.attention", weighting=Argmax()),
    ]
    made = trace(translator, text, "204", edits=changes)
    assert meta["edits"] == edits
    assert {site["name"]: site["edited"] for site in meta["sites"]} == dict.fromkeys(made.sites, True)
    assert [site["why"] for site in meta["sites"]] == [site.why for site in made.sites.values()]
    assert meta["notes"] == list(made.notes)
    for told, row in zip(meta["candidates"], made.candidates, strict=True):
        assert [one["id"] for one in told] == [one.id for one in row]
    _, row = client.get(f"api/trace/{meta['id']}/row", site="encoder.0.attention", head=0, query=2)
    assert row["score"][3] == 5.0
    _, row = client.get(f"api/trace/{meta['id']}/row", site="encoder.0.attention", head=1, query=1)
    assert (row["allowed"][0], row["weight"][0]) == (False, 0.0)
    _, plain = client.post("api/trace", {"source": text, "target": "204"})
    assert plain["candidates"] != meta["candidates"]


ASKED = {"site": "encoder.0.attention", "head": 0}
WRONG = [
    ("tile", {"step": "weight"}, "site is missing"),
    ("tile", ASKED, "step is missing"),
    ("tile", ASKED | {"site": "encoder.9.attention", "step": "weight"}, "there is no attention called 'encoder.9"),
    ("tile", ASKED | {"site": "x" * 3000, "step": "weight"}, "there is no attention called"),
    ("tile", ASKED | {"head": 2, "step": "weight"}, "head is 2, and must be 0 to 1"),
    ("tile", ASKED | {"head": -1, "step": "weight"}, "head is -1"),
    ("tile", ASKED | {"head": "1e3", "step": "weight"}, "head: expected a whole number; came '1e3'"),
    ("tile", ASKED | {"head": "٣", "step": "weight"}, "head: expected a whole number"),
    ("tile", ASKED | {"head": "9" * 400, "step": "weight"}, "head: expected a whole number"),
    ("tile", ASKED | {"step": "nonsense"}, "step is 'nonsense', and must be one of score, scaled, masked, weight"),
    ("tile", ASKED | {"step": "weight", "row": 1}, r"there is no tile \(1, 0\) at level 0"),
    ("tile", ASKED | {"step": "weight", "level": 60}, "level is 60, and must be 0 to 23"),
    ("tile", ASKED | {"step": "weight", "column": 2**52}, "there is no tile"),
    ("row", ASKED | {"query": 99}, "query is 99, and must be 0 to "),
    ("row", ASKED | {"query": ""}, "query: expected a whole number"),
    ("column", ASKED | {"key": 99}, "key is 99, and must be 0 to "),
    ("cell", ASKED | {"query": 0, "key": -1}, "key is -1"),
    ("cell", ASKED | {"head": "mean", "query": 0, "key": 0}, "head: expected a whole number; came 'mean'"),
    ("vectors", ASKED | {"role": "score"}, "role is 'score', and must be one of query, key, value, context"),
    ("vectors", {"name": "encoder.7.nothing"}, "there is no 'encoder.7.nothing' in this trace"),
    ("spaces", {"site": "encoder.0.attention", "head": 0, "places": "0,x"}, "places: expected a whole number"),
    ("spaces", {"site": "encoder.0.attention", "head": 0, "places": "0,0"}, "up to 24 different whole numbers"),
    ("spaces", {"site": "encoder.0.attention", "head": 0, "places": "0,99"}, "places: expected one or more from 0"),
    ("sequence", {"site": "encoder.0.attention", "head": 0, "query": 99}, "query is 99, and must be 0 to"),
    ("thumbs", {"site": "decoder.0"}, "there is no attention called 'decoder.0'"),
    ("readings", {"site": "decoder.0"}, "there is no attention called 'decoder.0'"),
    ("effects", {}, "site is missing"),
    ("stream", {"side": "left"}, "side is 'left', and must be one of encoder, decoder"),
]


@pytest.mark.parametrize(("part", "asked", "said"), WRONG)
def test_what_is_asked_wrongly_of_a_trace_is_told(translating, part, asked, said):
    client, name = translating
    status, found = client.get(f"api/trace/{name}/{part}", **asked)
    assert status == 400
    assert re.search(said, found["error"]), found["error"]


EDIT = {"at": "encoder.0.attention", "step": "score"}
UNTRACEABLE = [
    ({"source": ""}, "there is no text to trace"),
    ({"source": " \n "}, "there is no text to trace"),
    ({"source": "eins " * 50}, "the source has 250 tokens, and the model reads 31; shorten it"),
    ({"source": "eins", "target": "1" * 99}, "the target has 99 tokens"),
    ({"source": "eins", "target": [1, 99999]}, "ids go from 0 to "),
    ({"source": "eins", "target": [-1]}, "target: expected text, or a list of token ids"),
    ({"source": "eins", "target": [True]}, "target: expected text, or a list of token ids"),
    ({"source": "eins", "target": {"a": 1}}, "target: expected text"),
    ({"source": "eins", "step": 7}, "there is no checkpoint of step 7; there are 60"),
    ({"source": "eins", "step": "x"}, "step: expected a whole number"),
    ({"source": "eins", "more": 1}, "'more' is not an option here; there are edits, source, step, target"),
    ({"source": "eins", "edits": {}, "target": None, "step": -1}, "step is -1"),
    ({"source": "eins", "edits": "no"}, "edits: expected a list of objects"),
    ({"source": "eins", "edits": [3]}, "edits: expected a list of objects"),
    ({"source": "eins", "edits": [EDIT] * 1001}, "edits are 1001, and 1000 at most"),
    ({"source": "eins", "edits": [EDIT]}, "an edit has either `to`"),
    ({"source": "eins", "edits": [EDIT | {"to": 1, "times": 2}]}, "an edit has either `to`"),
    ({"source": "eins", "edits": [EDIT | {"to": True}]}, "to is True, which is for `allowed`; give a number"),
    ({"source": "eins", "edits": [EDIT | {"to": "5"}]}, "to: expected a finite number"),
    ({"source": "eins", "edits": [EDIT | {"to": [1, 2]}]}, "to: expected a finite number"),
    ({"source": "eins", "edits": [EDIT | {"to": 1, "head": 2}]}, "head 2 is changed, and there are 2"),
    ({"source": "eins", "edits": [EDIT | {"to": 1, "query": 77}]}, "query 77"),
    ({"source": "eins", "edits": [EDIT | {"to": 1, "colour": 1}]}, r"edits\[0\]: 'colour' is not an option here"),
    ({"source": "eins", "edits": [{"at": "encoder.5.attention", "step": "score", "to": 1}]}, "there is no attention"),
    ({"source": "eins", "edits": [EDIT | {"step": "dream", "to": 1}]}, "there is no 'encoder.0.attention.dream'"),
    ({"source": "eins", "edits": [EDIT | {"step": "allowed", "to": 3}]}, "what is allowed is set `to` True or False"),
    ({"source": "eins", "edits": [{"at": "encoder.0.attention", "weighting": "magic"}]}, "weighting is 'magic'"),
    ({"source": "eins", "edits": [{"at": "nowhere", "weighting": "argmax"}]}, "there is no attention called 'nowhere'"),
]


@pytest.mark.parametrize(("request_", "said"), UNTRACEABLE)
def test_what_cannot_be_traced_is_told(translator, client_of, request_, said):
    status, found = client_of(translator).post("api/trace", request_)
    assert status == 400
    assert re.search(said, found["error"]), found["error"]


def test_a_number_too_large_for_json_is_told(translator, client_of):
    body = json.dumps({"source": "eins", "edits": [EDIT | {"to": 1}]}).replace('"to": 1', '"to": 1e999').encode()
    status, found = client_of(translator).post("api/trace", body)
    assert status == 400
    assert "to: expected a finite number" in found["error"]


def test_a_target_for_a_task_without_one_is_told(classifier, client_of):
    status, found = client_of(classifier).post("api/trace", {"source": "red cat", "target": "beast"})
    assert status == 400
    assert "its text has no target" in found["error"]


def test_characters_never_met_are_noted(translator, client_of):
    _, meta = client_of(translator).post("api/trace", {"source": "eins 🙂 Ω"})
    assert any("never met in training, and read as unknown: 🙂Ω" in note for note in meta["notes"])


@pytest.mark.slow
def test_a_trace_that_was_let_go_is_gone_and_can_be_made_again(translator, client_of):
    client = client_of(translator)
    _, first = client.post("api/trace", {"source": "null null"})
    for number in range(TRACES):
        client.post("api/trace", {"source": f"eins {'zwei' * (number % 5)} {number}"})
    status, found = client.get(f"api/trace/{first['id']}/readings")
    assert status == 410
    assert "ask for it again" in found["error"]
    assert client.post("api/trace", {"source": "null null"})[1] == first
    assert client.get(f"api/trace/{first['id']}/readings")[0] == 200


def test_one_word_in_several_texts(runs, client_of):
    texts = {"translator": ["eins zwei", "drei zwei zwei"],
             "documents": ["the cat eats the plum", "the dog eats the cat"],
             "filler": ["the cat eats the <mask>", "the cow eats the cat"],
             "classifier": ["red cat", "old cat red cat"]}  # fmt: skip
    for name, given in texts.items():
        word = "zwei" if name == "translator" else "cat"
        status, found = client_of(runs[name]).post("api/context", {"texts": given, "word": word})
        assert status == 200, found
        places = found["places"]
        assert [place["text"] for place in places] == [text for text in given for _ in range(text.split().count(word))]
        for place in places:
            pieces = [place["tokens"][i] for i in place["places"]]
            assert "".join(pieces).strip("▁ ") == word
        cosine = np.array(found["cosine"])
        n = len(places)
        assert cosine.shape == (len(found["layers"]), n, n)
        assert found["layers"] == ["embedding", "0"]
        assert np.allclose(cosine[0], 1)
        assert cosine[1].min() < 0.999
        assert np.allclose(cosine.diagonal(axis1=1, axis2=2), 1)
        assert np.array(found["path"]).shape == (n, 2, 2)
        for i, place in enumerate(places):
            assert found["responsible"][i][0] == []
            top = found["responsible"][i][1]
            assert [one["text"] for one in top] == [place["tokens"][one["index"]] for one in top]
            assert sorted((one["weight"] for one in top), reverse=True) == [one["weight"] for one in top]


def test_the_projection_keeps_what_it_can_of_the_distances(translator, client_of):
    """Of three vectors and their mean, two directions keep everything; so of two words and two layers nearly all."""
    given = {"texts": ["eins zwei", "drei zwei"], "word": "zwei"}
    client = client_of(translator)
    found = client.post("api/context", given)[1]
    path = np.array(found["path"])
    assert np.allclose(path[0, 0], path[1, 0])
    assert np.linalg.norm(path[0, 1] - path[1, 1]) > 0
    assert found == client.post("api/context", given)[1]


def test_a_word_within_others_is_found_where_whole_tokens_make_it(translator, client_of):
    found = client_of(translator).post("api/context", {"texts": ["zweizwei", "einszwei"], "word": "zwei"})[1]
    assert [one["places"] for one in found["places"]] == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"texts": ["eins"], "word": "zwei"}, "the word 'zwei' does not stand in 'eins'"),
        ({"texts": ["eins"], "word": " "}, "there is no word to follow"),
        ({"texts": [], "word": "zwei"}, "texts: expected a text, or a list of texts"),
        ({"texts": ["eins"] * 21, "word": "eins"}, "texts: there are 21 texts; 20 at most"),
        ({"texts": [3], "word": "eins"}, "expected text"),
        ({"texts": ["eins" * 99], "word": "eins"}, "the source has"),
        ({"word": "eins"}, "texts is missing"),
    ],
)
def test_words_that_cannot_be_followed_are_told(translator, client_of, request_, said):
    status, found = client_of(translator).post("api/context", request_)
    assert status == (413 if "at most" in said else 400)
    assert said in found["error"]


def test_positions_side_by_side(runs, client_of):
    used = {name: client_of(run).get("api/positions", n=16)[1] for name, run in runs.items()}
    assert used["translator"]["used"] == "sinusoidal"
    for name, found in used.items():
        sinusoidal, learned, rotary = found["kinds"]
        assert [kind["name"] for kind in found["kinds"]] == ["sinusoidal", "learned", "rotary"]
        assert np.array(sinusoidal["table"])[1, 0] == pytest.approx(math.sin(1))
        for kind in (sinusoidal, rotary):
            assert len(kind["similarity"]) == 16
            assert kind["similarity"][0] == pytest.approx(1)
            assert max(kind["similarity"][1:]) < 1
        model = runs[name].model
        own = model.stacks[0].spec.embedding.position
        assert (sinusoidal["used"], learned["used"]) == (
            "Sinusoidal" in type(own).__name__, "Learned" in type(own).__name__
        )  # fmt: skip
        assert (learned["table"] is None) == (not learned["trained"])
        assert ("has learned no positions" in learned["note"]) == (learned["table"] is None)
        assert rotary["used"] == ("rotary" in found["used"])
    for n in (1, 5000, "x"):
        assert client_of(runs["translator"]).get("api/positions", n=n)[0] == 400


def test_a_compiled_table_of_positions_is_not_called_learned(tmp_path):
    compile_to_run(PROGRAMS["reverse"], tmp_path / "reverse")
    found = ask(Explorer(load(tmp_path / "reverse", device="cpu")), "positions")
    [own] = [kind for kind in found["kinds"] if kind["used"]]
    assert (found["used"], own["name"], own["title"], own["trained"]) == ("compiled", "compiled", "Compiled", False)
    assert "the compiler wrote" in own["sentence"]
    assert "has learned" not in own["note"]
    assert own["table"]


def test_a_sinusoid_is_alike_by_distance_alone(translator, client_of):
    table = np.array(client_of(translator).get("api/positions", n=16)[1]["kinds"][0]["table"])
    similarity = client_of(translator).get("api/positions", n=16)[1]["kinds"][0]["similarity"]
    for start in (0, 7):
        a, b = table[start], table[start + 5]
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) == pytest.approx(similarity[5])


@pytest.mark.parametrize("width", [1, 3, 8])
def test_the_tree_of_a_translation(translator, client_of, width):
    text = TEXTS["translator"]
    status, found = client_of(translator).post("api/decode", {"source": text, "beam": width, "candidates": 4})
    assert status == 200
    expected = translator.scored_translations([text], beam=width, n_best=width)[0]
    assert [one["text"] for one in found["outputs"]] == [one.text for one in expected]
    if width > 1:  # a greedy output is not scored by its length
        assert [one["score"] for one in found["outputs"]] == pytest.approx([one.score for one in expected])
    nodes, best = found["nodes"], found["best"]
    assert [node["id"] for node in nodes] == list(range(len(nodes)))
    assert (nodes[0]["parent"], best[0]) == (None, 0)
    for node in nodes[1:]:
        parent = nodes[node["parent"]]
        assert parent["state"] in ("live", "best")
        assert parent["step"] == node["step"] - 1
        assert node["total"] == pytest.approx(parent["total"] + node["log_prob"])
        assert len(node["candidates"]) == 4
        assert math.log(node["candidates"][0]["p"]) >= node["log_prob"] - 1e-9
    assert [nodes[i]["token"] for i in best[1:]] == found["outputs"][0]["ids"]
    assert {i for i, node in enumerate(nodes) if node["state"] == "best"} == set(best)
    for step in range(1, max(node["step"] for node in nodes) + 1):
        there = [node for node in nodes if node["step"] == step]
        assert sum(node["state"] == "live" for node in there) <= width
        assert [node["rank"] for node in there] == list(range(len(there)))
        assert [node["total"] for node in there] == sorted((node["total"] for node in there), reverse=True)
    assert any(node["state"] == "pruned" for node in nodes)
    made = trace(translator, text, found["outputs"][0]["ids"][:-1])
    assert found["source_tokens"] == made.sides["encoder"].tokens
    weight = torch.stack([head.weight for head in made["decoder.0.cross"].head]).mean(0)
    assert [one["step"] for one in found["cross"]] == list(range(1, len(best)))
    for one in found["cross"]:
        assert one["weight"] == [pytest.approx(weight[one["step"] - 1].tolist())]


def test_the_tree_of_a_text_that_goes_on(documents, client_of):
    asked = {"source": "the cat", "beam": 2, "max_new": 6}
    status, found = client_of(documents).post("api/decode", asked)
    assert status == 200
    assert found["cross"] is None
    assert len(found["outputs"]) == 2
    assert max(node["step"] for node in found["nodes"]) <= 6
    assert found["outputs"][0]["score"] >= found["outputs"][1]["score"]
    one = client_of(documents).post("api/decode", asked | {"beam": 1})[1]["outputs"][0]["text"]
    assert one == documents.generate(["the cat"], max_new=6, method=Greedy())[0]


def test_what_has_no_decoding_says_so(runs, client_of):
    for name in ("filler", "classifier"):
        status, found = client_of(runs[name]).post("api/decode", {"source": TEXTS[name]})
        assert status == 400
        assert "there is no decoding to see" in found["error"]
    for asked in ({"beam": 0}, {"beam": 9}, {"candidates": 0}, {"max_new": 0}, {"max_new": 10**6}, {"source": ""}):
        assert client_of(runs["translator"]).post("api/decode", {"source": "eins", **asked})[0] == 400
    assert client_of(runs["stretch"]).post("api/decode", {"source": "x" * 31})[0] == 200
    status, found = client_of(runs["stretch"]).post("api/decode", {"source": "x" * 32})
    assert status == 400
    assert "the text fills the 32 tokens that the model reads" in found["error"]


def test_curves_are_the_lines_of_the_log(translator, client_of):
    status, found = client_of(translator).get("api/curves")
    assert status == 200
    lines = [json.loads(line) for line in translator.folder.metrics.read_text().splitlines()]
    assert [line["loss"] for line in found["lines"]] == [line["loss"] for line in lines]
    assert {line["kind"] for line in found["lines"]} == {"training", "evaluation"}
    assert (found["training"], found["last"]) == (False, 60)
    assert client_of(translator).get("api/curves", after=60)[1]["lines"] == []
    assert client_of(translator).get("api/curves", after="x")[0] == 400


def test_curves_grow_with_the_log_and_are_cut_back_with_it(translator, tmp_path):
    shutil.copytree(translator.folder.path, tmp_path / "run")
    explorer = Explorer(load(tmp_path / "run", device="cpu"))
    path = tmp_path / "run" / "metrics.jsonl"
    known = path.read_bytes()
    before = ask(explorer, "curves")["lines"]
    with path.open("ab") as file:
        file.write(b'{"kind":"step","step":61,"loss":0.5}\n{"kind":"step","st')
    assert ask(explorer, "curves", {"after": "60"})["lines"] == [{"kind": "training", "step": 61, "loss": 0.5}]
    with path.open("ab") as file:
        file.write(b'ep":62,"loss":null}\n')
    assert [line["loss"] for line in ask(explorer, "curves", {"after": 60})["lines"]] == [0.5, None]
    path.write_bytes(known + b'{"kind":"step","step":61,"loss":0.25}\n{"kind":"step","step":62,"loss":0.2}\n')
    assert [line["loss"] for line in ask(explorer, "curves", {"after": 60})["lines"]] == [0.25, 0.2]
    path.write_bytes(b"")
    assert ask(explorer, "curves") == {"lines": [], "training": False, "last": None}
    path.write_bytes(known)
    assert ask(explorer, "curves")["lines"] == before


def test_a_run_that_is_being_trained_says_so(translator, tmp_path):
    shutil.copytree(translator.folder.path, tmp_path / "run")
    explorer = Explorer(load(tmp_path / "run", device="cpu"))
    with explorer.run.folder.lock():
        assert ask(explorer, "curves")["training"] is True
        assert ask(explorer, "run")["training"] is True
        assert (tmp_path / "run" / ".lock").read_text() == str(os.getpid())
    assert ask(explorer, "curves")["training"] is False


def unsealed(state):
    """The state of a checkpoint without what sealing it adds."""
    return {name: value for name, value in state.items() if name not in ("format", "sha256")}


def test_another_checkpoint_is_loaded_when_it_is_asked_for(translator, tmp_path):
    shutil.copytree(translator.folder.path, tmp_path / "run")
    checkpoints = RunFolder(tmp_path / "run").checkpoints
    [saved] = checkpoints.all()
    checkpoints.save(30, saved.model(), saved.training(), unsealed(saved.state))
    explorer = Explorer(load(tmp_path / "run", device="cpu"))
    assert ask(explorer, "run")["steps"] == [30, 60]
    one, other = (ask(explorer, "trace", {"source": "zwei", "step": step}) for step in (30, 60))
    assert (one["step"], other["step"]) == (30, 60)
    assert one["id"] != other["id"]
    assert one["candidates"] == other["candidates"]
    assert list(explorer.others.values) == [30]


def test_every_frame_of_the_film_is_answered_for(translator):
    explorer = Explorer(translator)
    assert ask(explorer, "run")["film"] == [0, 1, 2, 4, 8, 16, 32]
    asked = {"source": "zwei", "target": "2"}
    first = ask(explorer, "trace", {**asked, "step": 0})
    expected = trace(load(translator.folder.path, device="cpu", step=0), "zwei", "2")
    assert (first["step"], first["answer"]) != (translator.step, ask(explorer, "trace", asked)["answer"])
    tile = {"site": "decoder.0.cross", "head": 1, "step": "weight", "level": 0, "row": 0, "column": 0}
    assert torch.allclose(ask(explorer, "tile", tile, first["id"]), expected["decoder.0.cross"].head[1].weight)


def test_learned_positions_are_those_of_the_step(documents):
    explorer = Explorer(documents)
    for step in (0, documents.step):
        [own] = [kind for kind in ask(explorer, "positions", {"n": 16, "step": step})["kinds"] if kind["used"]]
        table = load(documents.folder.path, device="cpu", step=step).model.embedding.position.table
        assert own["trained"]
        assert own["table"] == table[:16].tolist()
    assert ask(explorer, "positions", {"n": 16}) != ask(explorer, "positions", {"n": 16, "step": 0})


def test_effects_of_heads_know_the_segments_of_a_pair(tmp_path):
    tokenizer = Tokenizer.train(["abcdefg"], kind="char")
    frame = Framing(before=(1,), after=(2,), between=(2,), segment=1)
    fields = dict.fromkeys(("first", "second"), tokenizer)
    task = ClassifyPairs(tokenizers=fields, context=12, labels=("x", "y"), framing=dict.fromkeys(fields, frame))
    torch.manual_seed(0)
    embedding = Embedding(position=None, segments=2)
    spec = presets.bert(presets.Size(1, 8, 2, 2, 8), vocabulary=tokenizer.vocabulary, length=12, output=Classes(2))
    model = dataclasses.replace(spec, embedding=embedding).build().eval()
    torch.nn.init.normal_(model.embedding.segment)
    explorer = Explorer(Run(RunFolder(tmp_path), task, model, 0))
    made = AskTrace(source="abc\tde", target=None, step=0).traced(explorer)
    found = ask(explorer, "effects", {"site": "encoder.0.attention"}, made.request.id)["effects"]
    whole = torch.tensor([one.log_prob for one in sorted(made.trace.candidates[0])])
    for head, one in enumerate(found):
        off = Edit(at="encoder.0.attention", step="context", head=head, times=0.0)
        changed = torch.tensor(
            [one.log_prob for one in sorted(trace(explorer.run, "abc\tde", edits=[off]).candidates[0])]
        )
        assert one["change"] == pytest.approx((changed - whole)[whole.argmax()].item(), abs=1e-5)
        assert one["kl"] == pytest.approx((whole.exp() * (whole - changed)).sum().item(), abs=1e-5)


def test_loaded_frames_take_a_share_of_the_memory_and_their_traces_go_with_them(translator):
    size = model_bytes(translator)
    explorer = Explorer(translator, AnswerBudget(memory=OTHERS_SHARE * (5 * size // 2)))  # there is room for two
    asked = {"source": "zwei", "target": "2"}
    own = ask(explorer, "trace", asked)
    made = [ask(explorer, "trace", {**asked, "step": step}) for step in (0, 1, 2)]
    assert list(explorer.others.values) == [1, 2]
    assert [meta["id"] in explorer.traces.values for meta in (own, *made)] == [True, False, True, True]
    assert explorer.traces.room == explorer.budget.memory - 2 * size


def test_a_second_run_is_asked_under_an_address_of_its_own(translator, classifier, tmp_path):
    explorer = side_by_side(translator, classifier, AnswerBudget(memory=2_000_000_000))
    assert explorer.beside is not None
    assert (explorer.budget.memory, explorer.beside.budget.memory) == (1_000_000_000, 1_000_000_000)
    with serving(translator, tmp_path / "static", explorer=explorer) as server:
        client = Client(server)
        _, mine = client.get("api/run")
        _, theirs = client.get("b/api/run")
        assert (mine["task"], mine["beside"], theirs["task"]) == ("translate", "run", "classify")
        assert "beside" not in theirs
        status, meta = client.post("b/api/trace", {"source": "red plum"})
        assert (status, meta["kind"]) == (200, "encoder")
        asked = {"site": "encoder.0.attention", "head": 0, "query": 0}
        assert client.get(f"b/api/trace/{meta['id']}/row", **asked)[0] == 200
        assert client.get(f"api/trace/{meta['id']}/row", **asked)[0] == 410
        assert client.send("GET", "/nobody/b/api/run")[0] == 401


def test_without_a_second_run_there_is_no_such_address(translator, client_of):
    client = client_of(translator)
    assert client.get("b/api/run")[0] == 404
    assert "beside" not in client.get("api/run")[1]


@pytest.mark.parametrize("name", ["classifier", "translator"])
def test_what_is_traced_in_modules_of_their_own_changes_no_other_answer(name, request):
    run = request.getfixturevalue(name)
    own, verb = with_own_modules(run), {"classifier": Run.classify, "translator": Run.translate}[name]
    before = verb(run, [TEXTS[name]])
    site = next(iter(trace(run, TEXTS[name]).sites))
    with recording(own.model, [Edit(at=site, step="context", times=0.0)]):
        assert verb(run, [TEXTS[name]]) == before
    assert verb(own, [TEXTS[name]]) == before
    assert all(one is other for one, other in zip(run.model.parameters(), own.model.parameters(), strict=True))
