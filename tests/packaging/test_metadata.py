"""The files that a registry, a journal or a visitor reads say the same as the project does."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from PIL import Image

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version_and_licence():
    cited = yaml.safe_load(read("CITATION.cff"))
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    day = f" - {cited['date-released']}" if "date-released" in cited else ""
    assert f"\n## [{cited['version']}]{day}\n" in read("CHANGELOG.md")
    assert (ROOT / f"docs/releases/{cited['version']}.md").exists()


def test_the_public_workflow_calls_what_our_own_ci_calls():
    steps = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["test"]["steps"]
    called = [step["run"] for step in steps if step.get("run", "").startswith("make ")]
    assert (
        called
        == [line for line in read(".ci/run").splitlines() if line.startswith("make ")]
        == ["make check", "make test"]
    )


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_a_form_for_issues_can_be_read(form):
    asked = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert form.stem == "config" or {"name", "description", "body"} <= set(asked)


def test_what_security_says_is_tested_is_a_page_with_a_table():
    assert "docs/reliability.md" in read("SECURITY.md")
    assert "## The table" in read("docs/reliability.md")


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "notebooks/README.md", "paper.md"])
def test_links_lead_somewhere(name):
    links = re.findall(r"\]\((?!https?:)([^)\s#]+)[^)]*\)", read(name))
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []


def test_the_paper_cites_what_it_has_and_shows_what_scripts_make():
    paper, known = read("paper.md"), set(re.findall(r"^@\w+\{(\w+),", read("paper.bib"), re.MULTILINE))
    assert set(re.findall(r"@(\w+)\]", paper)) == known
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", paper)
    assert len(figures) == 3
    drawn = read("docs/figures.py") + read("docs/screenshots.py")
    assert [figure for figure in figures if Path(figure).stem.removesuffix("-light") not in drawn] == []
    body = paper.split("---", 2)[2]
    assert len(body.split()) < 1000  # two pages


def test_the_readme_begins_with_what_a_user_types_and_clearhead_is_on_the_path():
    text = read("README.md")
    assert text.index("[demo]'\n```") < text.index("\nclearhead demo") < text.index("make demo")
    everywhere = text + "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert ".venv/bin/clearhead" not in everywhere


@pytest.mark.parametrize("film", ["learner", "researcher", "practitioner"])
def test_a_film_of_the_tour_is_small_and_moves(film):
    path = ROOT / f"docs/figures/tour/{film}.webp"
    assert path.stat().st_size < 1_000_000
    with Image.open(path) as found:
        assert getattr(found, "n_frames", 1) >= 4
    assert f"({path.relative_to(ROOT / 'docs')})" in read("docs/tour.md")
