"""Sources that are cut off, changed or made up: only errors of the family, and nothing left where the run would be."""

import contextlib
import json
import random
import shutil

import pytest

from clearhead.errors import ClearheadError
from clearhead.interop.run import import_model
from clearhead.training.run import load
from clearhead.training.tracing import trace
from tests.interop import saved_models

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("llama", "bert", "marian")
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors")
ODD = [
    *(None, True, False, 0, -1, 1, 2, 3, 10**6, 2**31, 2**63, 10**30, 0.5, -1e300),
    *("", "x", "gelu", "llama", [], [1], [[]], [None], {}, {"a": 1}, "\x00", "9" * 500, [[1, 2], [3]], {"content": 5}),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    home = tmp_path_factory.mktemp("sources")
    for name in NAMES:
        saved_models.save(name, home / name, rows=3)
    return home


def places_in(value, path=()):
    """Every place in a JSON value; of long lists and objects, which hold tokens, the first and the last."""
    yield path
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, one in inner if len(inner) <= 60 else (*inner[:4], *inner[-4:]):
        yield from places_in(one, (*path, key))


def change_json(data, draw):
    """A JSON text with one value at a random place replaced, removed, or named otherwise."""
    whole = json.loads(data)
    path = draw.choice(list(places_in(whole)))
    if not path:
        return json.dumps(draw.choice(ODD)).encode()
    owner = whole
    for key in path[:-1]:
        owner = owner[key]
    if draw.random() < 0.25:
        del owner[path[-1]]
    else:
        owner[path[-1]] = draw.choice(ODD)
    return json.dumps(whole).encode()


def change_header(data, draw):
    """A safetensors file with a header changed, and its length made to fit or not."""
    size = int.from_bytes(data[:8], "little")
    header = change_json(data[8 : 8 + size], draw)
    length = len(header) if draw.random() < 0.8 else draw.choice([0, 1, 2**40, 2**63, len(header) + 9])
    return length.to_bytes(8, "little") + header + data[8 + size :]


def change_bytes(data, draw):
    """A file cut off, with bytes flipped, or with bytes put in."""
    how = draw.randrange(3)
    if how == 0:
        return data[: draw.randrange(len(data))]
    place = draw.randrange(min(len(data), 4000))
    some = bytes(draw.randrange(256) for _ in range(draw.randint(1, 6)))
    return data[:place] + some + data[place + (len(some) if how == 1 else 0) :]


def attack(sources, home, seed):
    """One import of a source that is not as it was saved. What can be read all the same may be imported."""
    draw = random.Random(seed)
    name = draw.choice(NAMES)
    shutil.copytree(sources / name, home / "source")
    file = draw.choice([file for file in FILES if (home / "source" / file).exists()])
    path = home / "source" / file
    data = path.read_bytes()
    changes = [change_bytes, change_header if file.endswith("safetensors") else change_json]
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        try:
            data = draw.choice(changes)(data, draw)
        except (ValueError, IndexError):  # it is no JSON any more, or nothing is left of it
            data = change_bytes(data, draw) if data else b""
    path.write_bytes(data)
    if draw.random() < 0.05:
        path.unlink()
    try:
        dtype = draw.choice(("float32", "bfloat16", "int8"))
        found = import_model(home / "source", home / "run", dtype=dtype, device="cpu")
    except ClearheadError as error:
        assert sorted(one.name for one in home.iterdir()) == ["source"]
        return type(error).__name__
    with contextlib.suppress(ClearheadError):  # it may be of no use, but no crash
        trace(load(found.folder.path, device="cpu"), "the cat <mask>", "ein" if found.task.target == "writes" else None)
    return "imported"


def check_many(sources, tmp_path, seeds):
    found = []
    for seed in seeds:
        home = tmp_path / str(seed)
        home.mkdir()
        found.append(attack(sources, home, seed))
        shutil.rmtree(home)
    assert {"imported", "OptionError", "DataError"} <= set(found)


@pytest.mark.slow
def test_dozens_of_changed_sources(sources, tmp_path):
    check_many(sources, tmp_path, range(40))


@pytest.mark.thorough
@pytest.mark.slow
def test_thousands_of_changed_sources(sources, tmp_path):
    check_many(sources, tmp_path, range(1000, 4000))
