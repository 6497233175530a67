"""`clearhead steps`: what it prints is what the layer's `explain` says, written so that it can be followed by hand."""

import json
import math
import re
from dataclasses import fields

import pytest
import torch

import clearhead as ch
from clearhead.cli import run
from clearhead.cli.screen import show
from clearhead.cli.steps import MASKS, WEIGHTINGS, choose_terms, demonstrate, render_page
from clearhead.tracing.sentence import FEATURES, KINDS, TOKENS, creature_exchange, designed_layer, embeddings
from clearhead.tracing.sequence_diagram import draw_sequence

NUMBER = r"−?\d+(?:\.\d+)?(?:e[−+]\d+)?"


@pytest.fixture
def shown_by(capsys, plain_terminal):
    """Runs `clearhead steps` with these arguments, and gives what it printed."""

    def printed(*args):
        assert run(["steps", *args]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return printed


def explained(mask="none", weighting="softmax"):
    """The same from the layer, with no help from the command line."""
    torch.manual_seed(0)
    steps = designed_layer(WEIGHTINGS[weighting], MASKS[mask]).explain(embeddings())
    return {field.name: getattr(steps, field.name)[0].detach() for field in fields(steps)}


def read(text):
    return float(text.replace("−", "-"))


def table(text, name):
    """The five rows of numbers below the header that starts with this name."""
    lines = text.splitlines()
    top = next(i for i, line in enumerate(lines) if re.match(rf" +{name}( +[a-z]+){{4,}}$", line))
    rows = [line[10:].split() for line in lines[top + 1 : top + 1 + len(TOKENS)]]
    return torch.tensor([[read(x) for x in row] for row in rows])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["score", "masked", "weight", "context"])
def test_every_table_is_what_explain_says(shown_by, mask, name):
    shown, digits = table(shown_by("--mask", mask), name), 3 if name in ("weight", "context") else 2
    torch.testing.assert_close(shown, explained(mask)[name], atol=0.51 * 10**-digits, rtol=0)


def test_the_inputs_are_what_the_layer_makes_of_the_embeddings(shown_by):
    text, steps = shown_by(), explained()
    torch.testing.assert_close(table(text, "x"), embeddings())
    shown = table(text, "det")
    torch.testing.assert_close(shown, torch.cat([steps["query"], steps["key"], steps["value"]], -1))


@pytest.mark.parametrize("token", TOKENS)
def test_a_vector_is_the_rows_of_its_map_that_the_embedding_picks(shown_by, token):
    text, steps = shown_by("--query", token), explained()
    for role in ("query", "key", "value"):
        line = re.search(rf"^  {role} +(.+) = \((.+)\)$", text, re.MULTILINE)
        terms = re.findall(rf"({NUMBER})·\w+ \((.+?)\)", line[1])
        total = sum(read(amount) * torch.tensor([read(x) for x in row.split()]) for amount, row in terms)
        assert total.tolist() == steps[role][TOKENS.index(token)].tolist() == [read(x) for x in line[2].split()]


@pytest.mark.parametrize("weighting", ["softmax", "linear elu"])
@pytest.mark.parametrize("token", TOKENS)
def test_an_arrow_carries_the_sum_of_the_products_and_the_score(shown_by, token, weighting):
    text, steps = shown_by("--query", token, "--weighting", weighting), explained(weighting=weighting)
    arrows = re.findall(rf"^  {token} ──▶ (\w+) +(.+) = ({NUMBER})$", text, re.MULTILINE)
    assert [key for key, *_ in arrows] == list(TOKENS)
    for (_, products, score), expected in zip(arrows, steps["score"][TOKENS.index(token)], strict=True):
        total = sum(read(q) * read(k) for q, k in re.findall(rf"({NUMBER})·({NUMBER})", products))
        assert total == read(score) == expected.item()


@pytest.mark.parametrize("weighting", ["softmax", "warm softmax", "linear elu"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_share_written_out_is_the_weight(shown_by, mask, weighting):
    text, steps = shown_by("--weighting", weighting, "--mask", mask), explained(mask, weighting)
    lines = re.findall(rf"^  (\w+).* ({NUMBER}) / ({NUMBER}) +({NUMBER})", text, re.MULTILINE)
    assert [word for word, *_ in lines] == list(TOKENS)
    for (_, amount, total, weight), expected in zip(lines, steps["weight"][TOKENS.index("creature")], strict=True):
        assert read(amount) / read(total) == pytest.approx(expected.item(), abs=2e-3)
        assert read(weight) == pytest.approx(expected.item(), abs=6e-4)
    assert sum(read(amount) for _, amount, *_ in lines) == pytest.approx(read(lines[0][2]), abs=0.03)


def test_the_exponentials_are_those_of_the_masked_scores(shown_by):
    masked = explained("causal")["masked"][TOKENS.index("creature")].tolist()
    shown = re.findall(rf" ({NUMBER}) / {NUMBER} ", shown_by("--mask", "causal"))
    assert [read(x) for x in shown] == pytest.approx([math.exp(x) for x in masked], abs=6e-3)


@pytest.mark.parametrize("token", TOKENS)
def test_the_weighted_sum_adds_up_to_the_context(shown_by, token):
    text, steps = shown_by("--query", token), explained()
    lines = re.findall(rf"({NUMBER}) ·((?: +{NUMBER})+) =((?: +{NUMBER})+) ─", text)
    weight, value, product = (
        torch.tensor([[read(x) for x in part.split()] for part in parts]) for parts in zip(*lines, strict=True)
    )
    torch.testing.assert_close(value, steps["value"])
    torch.testing.assert_close(weight * value, product, atol=1e-3, rtol=0)
    context = torch.tensor([read(x) for x in re.search(rf"context =((?: +{NUMBER})+) ◀", text)[1].split()])
    torch.testing.assert_close(context, steps["context"][TOKENS.index(token)], atol=6e-4, rtol=0)
    torch.testing.assert_close(product.sum(0), context, atol=3e-3, rtol=0)


def test_the_scale_is_written_with_its_number(shown_by):
    assert f"÷ √d_k = √{len(KINDS)} = 2.00" in shown_by()
    assert "does not scale" in shown_by("--weighting", "linear-elu")


def test_the_kernel_and_its_difference_are_named(shown_by):
    text = " ".join(shown_by().split())
    assert "with the kernel fused: softmax of a dot product" in text
    assert re.search(r"Largest difference from the steps above: (\d\.\de-\d\d|0, bit for bit)\.", text)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("mask", MASKS)
def test_the_kernel_agrees_with_the_steps_whatever_the_weighting(mask, weighting):
    shown = demonstrate(mask, MASKS[mask], weighting, WEIGHTINGS[weighting])
    assert set(shown.differences) == {"attend", "layer"}
    assert max(shown.differences.values()) < 1e-5


@pytest.mark.pairs(1)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("mask", MASKS)
def test_every_page_fits_80_columns_without_escape_codes(capsys, plain_terminal, mask, weighting):
    shown = demonstrate(mask, MASKS[mask], weighting, WEIGHTINGS[weighting])
    for row in range(len(TOKENS)):
        show(*render_page(shown, row))
        printed = capsys.readouterr().out
        assert max(len(line) for line in printed.splitlines()) <= 80
        assert "\x1b" not in printed
        assert "nan" not in printed
        assert [line for line in printed.splitlines() if line != line.rstrip()] == []


def test_nouns_attend_to_adjectives_and_equal_keys_together():
    weight = explained()["weight"]
    creature = dict(zip(TOKENS, weight[TOKENS.index("creature")].tolist(), strict=True))
    assert creature["fluffy"] == creature["blue"] == creature["cute"] > 0.3
    assert TOKENS[2:5] == ("blue", "cute", "creature"), "the note's K_3, K_4 and x_5"
    keys = explained()["key"]
    kind = {"a": "det", "creature": "noun"} | dict.fromkeys(("fluffy", "blue", "cute"), "adj")
    assert (keys @ keys.T).tolist() == [[float(kind[a] == kind[b]) for b in TOKENS] for a in TOKENS]


def test_a_causal_mask_leaves_the_future_at_exactly_zero(shown_by):
    weight = table(shown_by("--mask", "causal"), "weight")
    assert weight.triu(1).abs().max() == 0
    torch.testing.assert_close(weight.sum(-1), torch.ones(len(TOKENS)), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("weighting", "said"),
    [
        ("argmax", "on its best key, the first of them if several tie."),
        ("argmax-last", "on its best key, the last of them if several tie."),
        ("argmax-average", "on its best keys, in equal parts if several tie."),
    ],
)
def test_what_is_said_of_argmax_is_what_is_shown_below_it(shown_by, weighting, said):
    assert f"All the weight of a row {said}" in " ".join(shown_by("--weighting", weighting).split())


def test_argmax_takes_the_first_of_a_tie_or_shares_it(shown_by):
    row = TOKENS.index("creature")
    assert table(shown_by("--weighting", "argmax"), "weight")[row].tolist() == [0, 1, 0, 0, 0]
    assert table(shown_by("--weighting", "argmax-average"), "weight")[row].tolist() == pytest.approx(
        [0, 1 / 3, 1 / 3, 1 / 3, 0], abs=1e-3
    )


def test_a_row_that_no_key_fits_says_so(shown_by):
    assert "No key fits this query" in shown_by("--weighting", "linear-relu", "--mask", "causal", "--query", "a")


@pytest.mark.parametrize("weighting", ["softmax", "linear random"])
@pytest.mark.parametrize("mask", MASKS)
def test_json_holds_every_step_by_name(shown_by, mask, weighting):
    answer = json.loads(shown_by("--json", "--mask", mask, "--weighting", weighting), parse_constant=pytest.fail)
    assert (answer["mask"], answer["weighting"], answer["token"]) == (mask, weighting, "creature")
    assert answer["tokens"] == list(TOKENS)
    assert answer["features"]["embedding"] == list(FEATURES)
    assert answer["embedding"] == embeddings().tolist()
    steps = explained(mask, weighting)
    assert list(answer["steps"]) == [field.name for field in fields(ch.Steps)]
    for name, rows in answer["steps"].items():
        assert [[-math.inf if x is None else x for x in row] for row in rows] == steps[name].tolist()
    causal = torch.ones(len(TOKENS), len(TOKENS)).tril().bool()
    assert answer["allowed"] == (causal if mask == "causal" else torch.ones_like(causal)).tolist()
    assert answer["kernel"]["name"] in ("fused", "chunked")
    assert set(answer["largest_difference"]) == {"attend", "layer"}


@pytest.mark.parametrize(
    ("widths", "room", "columns"),
    [
        ([3, 3, 3], 15, [0, 1, 2]),
        ([3, 3, 3, 3], 20, [0, 1, None, 3]),
        ([3, 3, 3, 3], 19, [0, 1, None, 3]),
        ([3, 3, 3, 3], 18, [0, None, 3]),
        ([9, 9, 9], 10, [None]),
    ],
)
def test_a_sum_too_long_for_the_line_leaves_out_its_middle(widths, room, columns):
    assert choose_terms(widths, room) == columns


def test_the_sequence_diagram_is_written_beside_the_page(shown_by, tmp_path):
    file = tmp_path / "creature.svg"
    assert shown_by("--svg", str(file), "--query", "cute", "--mask", "causal") == shown_by(
        "--query", "cute", "--mask", "causal"
    )
    expected = creature_exchange(TOKENS.index("cute"), WEIGHTINGS["softmax"], MASKS["causal"])
    assert file.read_text(encoding="utf-8") == draw_sequence(expected)


def test_a_diagram_that_cannot_be_written_is_told(capsys, plain_terminal, tmp_path):
    assert run(["steps", "--svg", str(tmp_path / "no" / "folder.svg")]) == 1
    out, err = capsys.readouterr()
    assert (out, "no/folder.svg" in err, "Traceback" in err) == ("", True, False)
