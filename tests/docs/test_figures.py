"""The figures show what the library computes, and the generated page is the one that is committed."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.peers import Late

ROOT = Path(__file__).parents[2]
figures = Late("docs.figures")


@pytest.fixture(scope="module")
def data():
    return figures.scale_data()


@pytest.mark.slow
def test_the_variance_of_a_score_is_its_width_and_1_once_scaled(data):
    for width, plain, scaled in zip(data.widths, data.variance["score"], data.variance["scaled"], strict=True):
        assert plain == pytest.approx(width, rel=0.05)
        assert scaled == pytest.approx(1, rel=0.05)


def test_softmaxs_gradient_vanishes_without_the_scale_and_stays_with_it(data):
    wide = [norm for width, norm in zip(data.widths, data.median_norm["score"], strict=True) if width >= 16]
    assert all(later < earlier for earlier, later in pairwise(wide))
    assert wide[-1] < 0.01 * wide[0]
    assert all(norm == pytest.approx(0.3, abs=0.03) for norm in data.median_norm["scaled"] + data.mean_norm["scaled"])


def test_the_norm_is_that_of_softmaxs_jacobian():
    scores = torch.randn(5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda scores: torch.softmax(scores, -1), scores)
    torch.testing.assert_close(figures.jacobian_norm(torch.softmax(scores, -1)), torch.linalg.matrix_norm(jacobian))


@pytest.mark.slow
def test_a_figure_is_the_same_to_the_byte_when_drawn_again(data, tmp_path):
    for name in ("one.svg", "two.svg"):
        figures.save(figures.draw_scale(data), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.slow
@pytest.mark.thorough
def test_the_script_writes_everything_that_is_committed(tmp_path):
    written = figures.main(tmp_path)
    assert sorted(written) == sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert (ROOT / "docs" / path.relative_to(tmp_path)).is_file()
        assert str(tmp_path) not in text
        assert not re.search(r"<dc:date>|\d{4}-\d{2}-\d{2}T", text)


def test_the_support_page_is_the_promise():
    committed = (ROOT / "docs/support.md").read_text(encoding="utf-8")
    assert committed == figures.support_page(), "run python docs/figures.py"


def test_every_committed_figure_is_shown_on_a_page():
    folders = ("docs", "benchmarks/results", "estimator")
    pages = "".join(page.read_text(encoding="utf-8") for name in folders for page in (ROOT / name).glob("*.md"))
    drawn = [path.name for path in (ROOT / "docs/figures").glob("*.svg")]
    assert [name for name in drawn if f"figures/{name})" not in pages] == []
    views = {path.stem.rpartition("-")[0] for path in (ROOT / "docs/figures/explorer").glob("*.png")}
    assert [view for view in views if not re.search(rf"\(figures/explorer/{view}-(light|dark)\.png\)", pages)] == []


def test_a_figure_of_a_page_is_drawn_from_what_its_code_finds(tmp_path, monkeypatch):
    page = "```python\nx = 2\n```\n\nthen\n\n```python\nprint(x)\nfound = x + 1\n```\n\n```output\n2\n```\n"
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr("docs.figures.__file__", str(tmp_path / "figures.py"))
    assert figures.found_on("page.md")["found"] == 3
