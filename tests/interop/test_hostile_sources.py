"""Sources that are cut off, changed or made up: only errors of the family, and nothing left where the run would be.

The files are those of `make attack` (tests/attack/strangers.py), which makes 20,000.
"""

import pytest

from tests.attack.strangers import WAYS, attempt, save_sources
from tests.once import made_once

pytestmark = [pytest.mark.plain, pytest.mark.slow]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return made_once(tmp_path_factory, "strangers", save_sources)


@pytest.mark.parametrize("name", WAYS)
def test_dozens_of_strangers_files(sources, tmp_path, name, capfd):
    count = 2 if name == "chat templates" else 25
    problems = [attempt(sources, tmp_path / "one", name, f"{i}") for i in range(count)]
    assert [problem for problem in problems if problem] == []
    assert "panicked" not in capfd.readouterr().err
