"""What a notebook shows of a trace."""

import base64
import io
import re

import torch
from PIL import Image

from clearhead.tracing import notebook
from clearhead.tracing.notebook import thumbnail
from clearhead.tracing.trace import trace_model
from tests.model.small import both_spec, built, decoder_spec, words


def test_every_head_is_a_picture_of_its_weights():
    trace = trace_model(built(both_spec()), words(1, 7), words(1, 5))
    page = trace._repr_html_()
    found = re.findall(r"base64,([^']+)' .*?title='([^']+)'", page)
    assert len(found) == 6 * 3
    image = Image.open(io.BytesIO(base64.b64decode(found[-1][0])))
    assert found[-1][1] == "decoder.1.cross, head 2"
    assert image.size == (7, 5)
    weight = trace.decoder[1].cross.head[2].weight
    for query, key in ((0, 0), (4, 6), (2, 3)):
        assert image.getpixel((key, query))[2] == round(255 - 255 * round(weight[query, key].item() * 255) / 255)


def test_a_long_text_is_shown_small_and_a_longer_one_in_part(monkeypatch):
    trace = trace_model(built(decoder_spec()), words(1, 100))
    small = thumbnail(trace.decoder[0].attention.head[0])
    assert small.shape == (25, 25)
    assert small.max() == 255 * torch.ones(())
    monkeypatch.setattr(notebook, "CELLS", 3 * 100 * 100)
    assert "and 1 more: ask for them by name" in trace._repr_html_()
