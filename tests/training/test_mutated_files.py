"""Damaged files: of a few hundred, each gives a clear error or changes nothing. `make attack` tries ten thousand."""

import json
import random
import tempfile

import pytest

from tests.attack.changing import change
from tests.training.mutating import Attack, attack_all

COUNT = 200


@pytest.mark.slow
def test_no_damaged_file_is_used_silently_or_ends_in_an_unclear_error(tmp_path):
    made = attack_all(COUNT, 13, tmp_path, tasks=("classify",))
    assert sum(sum(one.counts.values()) for one in made.values()) == COUNT
    assert {name: one.faults for name, one in made.items() if one.faults} == {}
    assert all(one.counts["told"] > COUNT // 10 for one in made.values())


def test_an_attack_that_succeeds_is_seen(tmp_path, monkeypatch):
    """A reader without checks gives what the damaged file says, or fails as it likes: the attack must say so."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path, attack = tmp_path / "file.json", Attack(1)
    path.write_text(json.dumps({"a": 1, "b": [2, 3]}))
    for _ in range(50):
        attack([path], lambda: json.loads(path.read_bytes())["b"], [2, 3], sealed=lambda file: True)
    said = " ".join(attack.faults)
    assert "gives something else, and says nothing" in said
    assert "KeyError" in said
    assert "JSONDecodeError" in said
    assert json.loads(path.read_text()) == {"a": 1, "b": [2, 3]}


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"x", b'{"a": [1, {"b": null}]}'])
def test_anything_can_be_damaged(data):
    draw = random.Random(5)
    assert any(change(data, draw)[0] != data for _ in range(20))
