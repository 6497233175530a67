"""Attention in the terminal: shades that follow the weights, in 80 columns, and the swap found."""

import re
from xml.etree import ElementTree

import pytest
import torch

from clearhead.cli.attention_map import (
    INKS,
    Drawing,
    attention_map,
    draw_svg,
    fit_widths,
    legend,
    pooled_map,
    readable,
    shade,
    swap,
)
from clearhead.colours import ROLES
from clearhead.errors import ShapeError

GERMAN, ENGLISH = ["vierund", "zwanzig", "</s>"], ["▁twenty", "-", "four", "</s>"]
CROSSED = torch.tensor([[0.05, 0.9, 0.05], [0.6, 0.2, 0.2], [0.8, 0.2, 0.0], [0.1, 0.25, 0.65]])


def lines(queries, keys, weight):
    return [text.plain for text in attention_map(queries, keys, weight)]


def test_the_map_is_shaded_by_the_weights():
    assert lines(ENGLISH, GERMAN, CROSSED) == [
        "         vierund zwanzig </s> most",
        "  twenty         ███████      0.90",
        "       - ▓▓▓▓▓▓▓ ░░░░░░░ ░░░░ 0.60",
        "    four ███████ ░░░░░░░      0.80",
        "    </s> ░░░░░░░ ░░░░░░░ ▓▓▓▓ 0.65",
    ]


def test_the_shades_are_in_the_colour_of_weights_and_the_names_in_those_of_their_roles():
    head, *rows = attention_map(ENGLISH, GERMAN, CROSSED)
    assert {span.style for span in head.spans} == {"key", "quiet"}
    assert {span.style for row in rows for span in row.spans} == {"query", "weight", "quiet"}


@pytest.mark.parametrize(
    ("weight", "character"),
    [(0.0, " "), (0.099, " "), (0.1, "░"), (0.3, "▒"), (0.5, "▓"), (0.799, "▓"), (0.8, "█"), (1.0, "█")],
)
def test_every_shade_begins_where_the_legend_says(weight, character):
    assert shade(weight) == character
    if character != " ":
        least = float(re.search(rf"{character}{{2}} ([\d.]+)", legend().plain)[1])
        assert least <= weight


@pytest.mark.parametrize("n", [2, 9, 20, 25])
def test_a_map_of_long_names_is_cut_to_80_columns(n):
    queries, keys = ["eine sehr lange Anfrage" * 2] * 3, [f"siebenundsechzig{i}" for i in range(n)]
    printed = lines(queries, keys, torch.full((3, n), 1 / n))
    assert max(map(len, printed)) <= 80
    assert all("…" in line for line in printed[1:])


def test_columns_share_the_room_and_the_widest_give_way():
    assert fit_widths([2, 7, 7], 30) == [4, 7, 7]
    assert sorted(fit_widths([4, 20, 9], 25)) == [4, 9, 9]
    assert sorted(fit_widths([4, 20, 9], 20)) == [4, 6, 7]
    with pytest.raises(ShapeError, match="a map of 50 columns does not fit into 60 characters"):
        fit_widths([5] * 50, 60)


def test_a_map_that_does_not_fit_its_names_is_told():
    with pytest.raises(ShapeError, match=r"a row for each of 2 queries and a column for each of 3 keys; came \(4, 3\)"):
        lines(["a", "b"], GERMAN, CROSSED)


def test_the_swap_is_found_between_words():
    found = swap(ENGLISH, GERMAN, CROSSED)
    assert (found.queries, found.keys) == (("twenty", "four"), ("zwanzig", "vierund"))
    assert found.weights == pytest.approx((0.9, 0.8))


def test_of_swaps_that_are_as_clear_the_nearest_is_found():
    weight = torch.tensor([[0.0, 1.0, 0.0], [0.98, 0.02, 0.0], [1.0, 0.0, 0.0]])
    assert swap(["forty", "eight", "and"], ["achtund", "vierzig", "</s>"], weight).queries == ("forty", "eight")


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("straight", torch.tensor([[0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])),
        ("vague", torch.tensor([[0.3, 0.4, 0.3], [0.3, 0.4, 0.3], [0.4, 0.3, 0.3], [0.0, 0.0, 1.0]])),
        ("to the end", torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])),
    ],
)
def test_where_nothing_swaps_none_is_found(name, weight):
    assert swap(ENGLISH, GERMAN, weight) is None


def test_a_lone_space_stays_to_be_seen():
    assert [readable(piece) for piece in ("▁twenty", "four", "▁")] == ["twenty", "four", "▁"]


def pooled(n_query, n_key, weight):
    return [
        text.plain for text in pooled_map([f"q{i}" for i in range(n_query)], [f"k{i}" for i in range(n_key)], weight)
    ]


def test_a_small_map_is_not_pooled():
    assert pooled(4, 3, CROSSED) == lines([f"q{i}" for i in range(4)], [f"k{i}" for i in range(3)], CROSSED)


@pytest.mark.parametrize(("n_query", "n_key"), [(4, 60), (60, 4), (128, 128), (1000, 700)])
def test_a_large_map_is_pooled_into_80_columns_and_no_weight_is_lost(n_query, n_key):
    weight = torch.zeros(n_query, n_key)
    weight[-1, -1] = 0.9
    *rows, said = pooled(n_query, n_key, weight)
    assert max(map(len, rows)) <= 80
    assert len(rows) <= 28
    assert [row.count("█") for row in rows] == [0] * (len(rows) - 1) + [1]
    height, width = map(int, re.search(r"largest of up to (\d+) × (\d+) weights", said).groups())
    assert height * len(rows) >= n_query
    assert [row.split()[0] for row in rows] == [f"q{i}" for i in range(0, n_query, height)]
    assert height == 1 or height * 28 >= n_query > (height - 1) * 28
    assert width == -(-n_key // 52)


SVG = "{http://www.w3.org/2000/svg}"
WEIGHT = torch.tensor([[0.05, 0.9, 0.05], [0.6, 0.4, 0.0], [0.8, 0.2, 0.0], [0.1, 0.2501, 0.6499]])


def drawn(queries=("<s>", "▁twenty", "-", "four"), keys=("vierund", "zwanzig", "</s>"), weight=WEIGHT):
    text = draw_svg(Drawing(title="a & b", said="1 < 2", queries=queries, keys=keys, weight=weight))
    return text, ElementTree.fromstring(text)


def of_class(root, tag, name):
    return [one for one in root.iter(SVG + tag) if one.get("class") == name]


@pytest.mark.slow
def test_the_map_has_a_cell_for_each_weight_that_can_be_seen_and_says_it():
    _, root = drawn()
    cells = of_class(root, "rect", "cell")
    seen = WEIGHT[WEIGHT >= 0.002]
    torch.testing.assert_close(torch.tensor([float(one.get("fill-opacity")) for one in cells]), seen, atol=1e-4, rtol=0)
    told = [one.find(f"{SVG}title").text for one in cells]
    assert told[1] == "<s> ← zwanzig: 0.9"
    assert [float(one.rsplit(" ", 1)[1]) for one in told] == pytest.approx(seen.tolist(), rel=1e-5)
    assert len({(one.get("x"), one.get("y")) for one in cells}) == len(cells)


def test_an_arc_goes_from_a_query_to_a_key_the_stronger_the_greater_the_weight():
    _, root = drawn()
    arcs = of_class(root, "path", "arc")
    shown = [float(one.get("stroke-opacity")) for one in arcs]
    assert shown == pytest.approx(WEIGHT[WEIGHT >= 0.002].tolist(), abs=1e-4)
    assert max(arcs, key=lambda one: float(one.get("stroke-width"))) is arcs[shown.index(max(shown))]
    heights = {one.text: float(one.get("y")) - 4 for one in root.iter(f"{SVG}text") if one.get("transform") is None}
    start, *_, end = re.findall(r"[\d.]+ ([\d.]+)", arcs[1].get("d"))
    assert (float(start), float(end)) == (heights["<s>"], heights["zwanzig"])


def test_names_are_text_in_the_colours_of_their_roles_and_all_lies_inside():
    text, root = drawn()
    assert [one.text for one in of_class(root, "text", "query")] == ["<s>", "twenty", "-", "four"] * 2
    assert [one.text for one in of_class(root, "text", "key")] == ["vierund", "zwanzig", "</s>"] * 2
    assert all(colour in text for colour in (INKS["query"], INKS["key"], ROLES["weight"]))
    width, height = float(root.get("width")), float(root.get("height"))
    assert all(float(one.get("x")) < width and float(one.get("y")) < height for one in root.iter(f"{SVG}text"))
    [frame] = of_class(root, "rect", "frame")
    assert float(frame.get("y")) + float(frame.get("height")) <= height
    assert root[1].get("fill") == "#ffffff"


def test_odd_tokens_and_weights_are_drawn_all_the_same():
    odd = ["\x00", "\ud800", "]]>", '"', "a" * 400]
    text, root = drawn(odd, odd, torch.full((5, 5), 1.5))
    assert len(of_class(root, "rect", "cell")) == 25
    assert "a" * 30 not in text.replace("aria", "").split("<title>")[0]
    text.encode()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|url\(", text)


def test_it_is_always_the_same():
    assert drawn()[0] == drawn()[0]
