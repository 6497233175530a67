"""A head as an SVG drawing: well-formed whatever the tokens are, every weight in the map and in the arcs."""

import re
from xml.etree import ElementTree

import pytest
import torch

from clearhead.cli.attention_drawing import INKS, Drawing, draw_svg
from clearhead.colours import ROLES

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
