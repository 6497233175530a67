"""Attention in the terminal: shades that follow the weights, in 80 columns, and the swap found."""

import re

import pytest
import torch

from clearhead.cli.attention_map import attention_map, fit_widths, legend, pooled_map, readable, shade, swap
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
