"""`clearhead page`: a file with the model in it, and what is refused before one is written."""

import json
import re

import pytest

from clearhead.serve import live
from clearhead.serve.live import PLACE, WEIGHTS

pytestmark = pytest.mark.usefixtures("plain_terminal")


@pytest.fixture(autouse=True)
def template(monkeypatch, tmp_path):
    """A page that is built, and of which little is left."""
    path = tmp_path / "live.html"
    path.write_text(f"<html>é{PLACE}</script>{WEIGHTS}</script></html>", encoding="utf-8")
    monkeypatch.setattr(live, "TEMPLATE", path)


def test_it_writes_the_page_and_says_what_its_weights_are(classifier, command, tmp_path):
    code, out, err = command("page", classifier.folder.path, "-o", tmp_path / "page.html")
    assert (code, err) == (0, "")
    weights = r"[\d.]+ MB, [\d,]+ parameters in float32; film of \d steps, rounded to 11 bits \([\d.]+ MB\)"
    assert re.fullmatch(rf"{re.escape(str(tmp_path / 'page.html'))}: {weights}\n", out)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(re.search(f"{re.escape(PLACE)}(.*?)</script>", text, re.DOTALL)[1])
    assert data["task"]["labels"] == list(classifier.task.labels)
    assert data["run"]["path"] == classifier.folder.path.name


def test_json_has_the_figures(classifier, command, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "EXACT", 10)
    code, out, _ = command("page", classifier.folder.path, "-o", tmp_path / "page.html", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["weights"] == "float16"
    assert found["bytes"] == (tmp_path / "page.html").stat().st_size
    assert found["film"] == classifier.folder.film.steps()


def test_a_film_that_is_left_out_is_said_but_where_it_was_asked_for(classifier, command, tmp_path, monkeypatch):
    steps = len(classifier.folder.film.steps())
    monkeypatch.setattr(live, "MOST_FILM", 60_000)
    code, out, _ = command("page", classifier.folder.path, "-o", tmp_path / "page.html")
    assert code == 0
    assert f"; film of {(steps + 1) // 2} of its {steps} steps, rounded" in out
    monkeypatch.setattr(live, "MOST_FILM", 1000)
    _, out, _ = command("page", classifier.folder.path, "-o", tmp_path / "page.html")
    assert out.endswith(f"; without the film, whose {steps} steps would take more than 12 MB\n")
    _, out, _ = command("page", classifier.folder.path, "-o", tmp_path / "page.html", "--no-film")
    assert out.endswith("parameters in float32\n")


def test_rounded_weights_are_said(classifier, command, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "EXACT", 10)
    _, out, _ = command("page", classifier.folder.path, "-o", tmp_path / "page.html")
    assert "parameters in float16, rounded from float32; film of " in out


def test_what_cannot_be_is_said_and_nothing_is_written(classifier, command, tmp_path, monkeypatch):
    code, out, err = command("page", classifier.folder.path, "-o", classifier.folder.path / "model.json")
    assert (code, out) == (1, "")
    assert "is a file of the run" in err
    monkeypatch.setattr(live, "MOST", 10)
    code, out, err = command("page", classifier.folder.path, "-o", tmp_path / "page.html")
    assert (code, out) == (1, "")
    assert "holds 10 at most" in err
    assert not (tmp_path / "page.html").exists()
