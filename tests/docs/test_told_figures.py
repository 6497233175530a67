"""Figures in the prose and the tables of the pages are computed, here or by the page itself; none is only quoted."""

import re
from pathlib import Path
from statistics import mean

import pytest
import torch

from clearhead.model import PostNorm
from tests.docs.pages import blocks
from tests.peers import Late

DOCS = Path(__file__).parents[2] / "docs"
figures = Late("docs.figures")
FOR_BEGINNERS = (
    "attention-from-scratch.md",
    "misconceptions.md",
    "the-notes.md",
    "why-the-scale.md",
)


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", FOR_BEGINNERS)
def test_every_section_with_code_shows_what_it_prints(page):
    lines = text_of(page).splitlines()
    headings = [number for number, line in enumerate(lines, 1) if re.match(r"#+ ", line)]
    silent = {}
    for block in blocks(DOCS / page):
        section = max(number for number in headings if number < block.line)
        silent[section] = silent.get(section, True) and not block.output
    # The first block of a page imports what the others use, and stands before any section.
    assert [lines[section - 1] for section, quiet in silent.items() if quiet and section != headings[0]] == []


def test_the_four_steps_of_the_walk_are_printed_with_their_names():
    walk = text_of("attention-from-scratch.md")
    section = walk[walk.index("## The four steps") : walk.index("## From different sequences")]
    for name in ("score", "scaled", "weight", "context"):
        assert re.search(rf"^{name} +-?\d", section, re.MULTILINE), name


def test_two_words_come_first_in_the_walk():
    walk = text_of("attention-from-scratch.md")
    assert (
        walk.index("is [2, 3] and the other is [1, 4]")
        < walk.index("## Queries, keys")
        < walk.index("ch.Attention(512")
    )


def test_the_models_page_says_how_the_last_maps_of_post_norm_start():
    page = text_of("models.md")
    share = PostNorm().gain(n_branches=12, stream=1.0)
    assert f"= {share:.3f} of the rule" in page
    assert f"last maps: {share:.3f} of the rule" in page
    assert "needs none of that" not in page


@pytest.mark.slow
def test_the_lead_of_the_best_key_is_measured_and_agrees_with_theory():
    found = figures.found_on("why-the-scale.md")
    measured, theory = found["ahead"].mean().item(), found["lead"].item() * 512**0.5
    assert measured == pytest.approx(theory, rel=0.05)
    page = text_of("why-the-scale.md")
    assert f"ahead by {measured:.1f} on average" in page
    assert f"which is {theory:.1f} on average" in page
    assert "160,000" not in page


def test_the_guide_has_one_norm_of_the_jacobian_and_says_which():
    for page in DOCS.glob("*.md"):
        for arguments in re.findall(r"matrix_norm\((.*)\)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert 'ord="fro"' in arguments, f"{page.name}: {arguments}"
    for page in ("why-the-scale.md", "misconceptions.md"):
        assert "Frobenius norm" in text_of(page)
    assert "Frobenius norm" in figures.draw_scale(figures.scale_data(widths=(4, 8), rows=20)).axes[1].get_ylabel()


@pytest.mark.parametrize("n_keys", [2, 3, 16])
def test_the_norm_is_never_above_a_half_even_for_weights_that_seek_it(n_keys):
    scores = torch.randn(64, n_keys, dtype=torch.float64).requires_grad_()
    climb = torch.optim.Adam([scores], lr=0.1)
    for _ in range(300):
        climb.zero_grad()
        (-figures.jacobian_norm(torch.softmax(scores, -1)).sum()).backward()
        climb.step()
    largest = figures.jacobian_norm(torch.softmax(scores, -1)).max().item()
    assert 0.499 < largest <= 0.5 + 1e-9


def tables(page: str) -> list[list[list[str]]]:
    """Return the tables of a page: rows of cells."""
    found = re.findall(r"(?:^\|.*\|\n)+", text_of(page), re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()] for table in found]


def test_the_means_of_the_results_are_those_of_their_seeds():
    counted = 0
    for table in tables("results.md"):
        seeds = [row for row in table if re.fullmatch(r"seed \d+", row[0])]
        for told in (row for row in table if row[0] == "**mean**"):
            for column, cell in enumerate(told[1:], 1):
                if cell:
                    digits = cell.strip("*")
                    average = mean(float(row[column]) for row in seeds)
                    assert abs(average - float(digits)) <= 0.5001 * 10 ** -len(digits.partition(".")[2])
                    counted += 1
    assert counted >= 5


def test_a_published_mean_says_of_how_many_seeds_and_no_unchecked_figure_is_told():
    rows = {row[0]: row[1:] for table in tables("results.md") for row in table}
    assert rows["mean of five seeds, reported by others"][0] == "1.4655"
    assert rows["mean of three seeds, reported by others"][0] == "1.4603"
    assert [cell for cell in rows["published"] if re.search(r"\d", cell)] == ["41.02"]
