"""The pieces of a display: cells with numbers and tooltips, images for large maps, themes without a script."""

import base64
import io
import re
import struct
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from clearhead import notebook
from clearhead.colours import ROLES
from clearhead.notebook import Display, Matrix, bars, facts, heat_map, heat_maps, png, spell, svg_file, token_line

NAN = float("nan")


def tips(shown):
    return re.findall(r"<title>(.*?)</title>", shown)


def test_a_cell_has_its_colour_its_number_and_a_tooltip():
    shown = heat_map(Matrix("scaled", torch.tensor([[2.0, -1.0], [NAN, 0.0]]), percent=False, hidden="hidden"))
    assert tips(shown) == ["0 → 0: 2", "0 → 1: -1", "1 → 0: hidden", "1 → 1: 0"]
    assert f'fill="{ROLES["weight"]}" fill-opacity="{notebook.OPAQUE:.3f}"' in shown
    assert f'fill="{ROLES["query"]}" fill-opacity="{notebook.OPAQUE / 2:.3f}"' in shown
    assert re.findall(r">(-?\d+\.\d\d)</text>", shown) == ["2.00", "-1.00", "0.00"]
    assert shown.count("<path") == 1, "a stroke across what is hidden"


def test_digits_fit_their_cells():
    shown = heat_map(Matrix("score", torch.tensor([[9.876, -12.345, 123.4]]), percent=False))
    assert re.findall(r">(-?[\d.]+)</text>", shown)[:3] == ["9.88", "-12.3", "123"]


def test_weights_are_named_by_their_tokens_and_read_in_percent():
    shown = heat_map(Matrix("head 0", torch.tensor([[0.25, 0.75]]), ["three"], [" 3", "</s>"]))
    assert tips(shown) == ["three → ·3: 25.0000%", "three → &lt;/s&gt;: 75.0000%"]
    assert "head 0, up to 75.0%" in shown


@pytest.mark.parametrize("shape", [(60, 3), (3, 60)])
def test_a_large_map_is_one_image(shape):
    values = torch.rand(shape)
    values[0, 0] = NAN
    shown = heat_map(Matrix("head 0", values))
    assert "<title>" not in shown
    data = base64.b64decode(re.search(r"base64,([^\"]+)", shown)[1])
    pixels = read_png(data)
    assert pixels.shape == (*shape, 4)
    assert pixels[0, 0].tolist() == [128, 128, 128, 70]
    highest = torch.where(values.isnan(), 0, values)
    assert torch.equal(pixels[..., 3].argmax(), highest.argmax())
    assert pixels[..., :3].flatten(0, 1)[highest.argmax()].tolist() == notebook.channels(ROLES["weight"])


def test_many_cells_together_are_images(monkeypatch):
    monkeypatch.setattr(notebook, "CELLS", 10)
    few, many = (heat_maps([Matrix("a", torch.rand(2, 2))] * n) for n in (2, 3))
    assert all("<title>" in one for one in few)
    assert all("<image" in one for one in many)


def test_a_pooled_map_says_so():
    assert "each cell the largest of 4 × 4" in heat_map(Matrix("head 0", torch.rand(5, 5), pool=4))


@pytest.mark.parametrize("size", [1, 5, 60])
def test_a_file_is_xml_that_says_its_title_and_holds_all_that_it_draws(size):
    odd = ["\x00", "\ud800", "]]>", '"', "a" * 400] * (size // 5) or ["<s>"]
    text = svg_file(Matrix("decoder.0 & head 1", torch.rand(size, size), odd, odd), "1 < 2")
    text.encode()
    root = ElementTree.fromstring(text)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == ["decoder.0 & head 1", "1 < 2"]
    width, height = float(root.get("width")), float(root.get("height"))
    drawn = root.find("{http://www.w3.org/2000/svg}g/{http://www.w3.org/2000/svg}g")
    left, top = map(float, re.findall(r"[\d.]+", drawn.get("transform")))
    frame = drawn.findall("{http://www.w3.org/2000/svg}rect")[-1]
    assert 12 + left + float(frame.get("width")) <= width
    assert 52 + top + float(frame.get("height")) <= height
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script|url\(", text)


def test_a_png_is_read_by_others():
    image = pytest.importorskip("PIL.Image")
    pixels = torch.randint(0, 256, (3, 5, 4), dtype=torch.uint8)
    read = image.open(io.BytesIO(png(pixels)))
    assert torch.equal(torch.from_numpy(np.array(read)), pixels)


def read_png(data):
    """Return the pixels of a file that `png` made, after checking its checksums."""
    at, chunks = 8, {}
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = torch.frombuffer(bytearray(zlib.decompress(chunks[b"IDAT"])), dtype=torch.uint8).view(height, 1 + 4 * width)
    return rows[:, 1:].reshape(height, width, 4)


def test_bars_are_as_long_as_probabilities():
    shown = bars([("<s>", [("three", 0.5), ("two", 0.0001)])], label="answers")
    assert 'width="30.0"' in shown
    assert "three 50.0%" in shown
    assert "two &lt;0.1%" in shown
    assert tips(shown) == ["&lt;s&gt; → three: 50.0000%", "&lt;s&gt; → two: 0.0100%"]


def test_what_is_written_cannot_become_markup():
    evil = "</svg><script>alert(1)</script>\"'&"
    shown = "".join(
        [
            Display(evil, facts({evil: [evil], "b": evil}))._repr_html_(),
            token_line(evil, [evil], "query"),
            heat_map(Matrix(evil, torch.ones(1, 1), [evil], [evil])),
            bars([(evil, [(evil, 1.0)])], label=evil),
        ]
    )
    assert "<script" not in shown
    assert shown.count("</svg>") == 2


@pytest.mark.parametrize(("token", "shown"), [("", "∅"), (" the", "·the"), ("▁the", "·the"), ("a\nb", "a⏎b")])
def test_tokens_as_they_are_shown(token, shown):
    assert spell(token) == shown


def test_a_long_text_says_how_much_is_left_out():
    assert "… 50 more" in token_line("text", ["a"] * 250, "query")


def test_a_display_is_saved_as_a_page(tmp_path):
    shown = Display("A title", "<p>text</p>")
    shown.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert shown._repr_html_() in page
    assert repr(shown) == "Display(A title: a notebook shows it, save(path) writes it)"
