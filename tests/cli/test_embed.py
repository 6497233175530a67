"""`clearhead embed`: vectors of lines, of an imported encoder and of one that was trained here."""

import json

import numpy as np
import pytest

import clearhead as ch
from clearhead.interop.run import import_model
from tests.interop import saved_models

TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("imported")
    for name in ("embedder", "gpt2"):
        saved_models.save(name, home / "sources" / name)
        import_model(home / "sources" / name, home / name, device="cpu")
    return home


def test_vectors_of_lines_and_as_an_array(runs, command, tmp_path):
    loaded = ch.load(runs / "embedder", device="cpu")
    lines = f"{TEXT}\n\nthe window\n"
    code, out, err = command("embed", runs / "embedder", "--normalize", stdin=lines)
    assert (code, err) == (0, "")
    expected = loaded.embed([TEXT, "the window"], normalize=True)
    found = out.split("\n")
    assert found[1] == ""
    assert np.allclose([json.loads(found[0]), json.loads(found[2])], expected, atol=1e-6)
    code, out, _ = command("embed", runs / "embedder", "--output", tmp_path / "v.npy", stdin=lines)
    assert code == 0
    assert "3 vectors of 24 numbers" in out
    array = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert array.dtype == np.float32
    assert np.array_equal(array[1], np.zeros(24))
    assert np.allclose(array[[0, 2]], loaded.embed([TEXT, "the window"]), atol=1e-6)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--pooling", "sum"), "there is no 'sum'; there are mean, first"),
        (("--json", "--output", "v.npy"), "--output writes an array"),
        (("--output", "nowhere/v.npy"), "there is no folder nowhere"),
    ],
)
def test_embed_asked_wrongly(runs, command, here, args, message):
    code, out, err = command("embed", runs / "embedder", *args, stdin="x\n")
    assert code
    assert out == ""
    assert list(here.iterdir()) == []
    assert message in err


def test_a_decoder_has_no_vectors_of_texts(runs, command):
    code, out, err = command("embed", runs / "gpt2", stdin="x\n")
    assert (code, out) == (1, "")
    assert "to embed takes an encoder" in err
