"""Where a command may write."""

from pathlib import Path

import pytest

from clearhead.errors import OptionError
from clearhead.training.outputs import check_output


@pytest.fixture
def home(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    for name in ("recipe.json", "model.json", "tokenizer.source.json", "metrics.jsonl"):
        (tmp_path / "run" / name).write_text("{}")
    (tmp_path / "text.de").write_text("eins\n")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        *("recipe.json", "run.json", "tokenizer.source.json", "metrics.1.jsonl", "curves.svg"),
        *("checkpoints/new.txt", "checkpoints/step-00000001/model.safetensors"),
    ],
)
def test_a_file_of_a_run_is_never_written_over(home, name):
    with pytest.raises(OptionError, match=r"--html: .* is a file of the run run; name another file"):
        check_output(home / "run" / name, option="--html")


def test_an_input_is_never_written_over_by_any_of_its_names(home, monkeypatch):
    (home / "link").symlink_to(home / "text.de")
    (home / "hard").hardlink_to(home / "text.de")
    monkeypatch.chdir(home)
    for name in ("text.de", "./run/../text.de", "link", "hard", str(home / "text.de")):
        with pytest.raises(OptionError, match="which is read; name another file"):
            check_output(Path(name), option="--output", inputs=[home / "text.de"])


def test_a_link_into_a_run_is_seen_through(home):
    (home / "page.html").symlink_to(home / "run" / "recipe.json")
    with pytest.raises(OptionError, match="is a file of the run"):
        check_output(home / "page.html", option="--html")


def test_anything_else_may_be_written(home):
    for name in ("run/attention.html", "text.en", "other.json", "recipe.json"):
        assert check_output(home / name, option="--html", inputs=[home / "text.de"]) == home / name


def test_a_folder_or_a_missing_one_is_told(home):
    with pytest.raises(OptionError, match="it is a folder"):
        check_output(home / "run", option="--html")
    with pytest.raises(OptionError, match="there is no folder"):
        check_output(home / "none" / "a", option="--html")
