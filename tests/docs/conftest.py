"""What holds for the tests of the guide: small tensors on one thread, and the registry left as it was."""

import hashlib
import importlib
import json
import shutil
from pathlib import Path

import pytest

from tests.once import made_once
from tests.registering import registry_restored


@pytest.fixture(autouse=True)
def small():
    """Every page has small tensors."""


@pytest.fixture
def tables_as_they_were():
    """A page may register a part; the next test does not see it."""
    importlib.import_module("clearhead.training")  # Clearhead's own parts are registered before, not meanwhile
    with registry_restored():
        yield


@pytest.fixture
def trained_once(monkeypatch, tmp_path_factory):
    """Four pages train the same model with the same text: the first one does, and the others have a copy of its run."""
    from clearhead import training
    from clearhead.serialization import to_json

    really = training.train

    def train(path, recipe, **options):
        text = recipe.corpus.train
        if options.keys() - {"log"} or not isinstance(text, training.Aligned):
            return really(path, recipe, **options)
        said = json.dumps(to_json(recipe))
        for file in (*text.source, *text.target):
            said = said.replace(file, hashlib.sha256(Path(file).read_bytes()).hexdigest())
        name = f"page-run-{hashlib.sha256(said.encode()).hexdigest()[:16]}"
        home = made_once(tmp_path_factory, name, lambda folder: really(folder / "run", recipe, **options))
        return training.load(shutil.copytree(home / "run", path, symlinks=True), device=recipe.machine.device)

    monkeypatch.setattr(training, "train", train)
