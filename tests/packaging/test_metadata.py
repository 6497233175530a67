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


def runs_recorded() -> set[tuple[str, str]]:
    """Return systems and Pythons with a run of all tests in checks.md: a closing line without failures."""
    _, _, section = read("benchmarks/results/checks.md").partition("\n## What was run where\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    whole = [row for row in rows if re.match(r"`make test`|all tests", row[2]) and re.fullmatch(PASSED, row[3])]
    return {(row[0].partition(",")[0], row[1]) for row in whole}


PASSED = r"[\d,]+ passed(, [\d,]+ (skipped|deselected|warnings?))*( in .+)?(; with shapes checked [\d,]+ passed.*)?"
SYSTEMS = {"Linux": "POSIX :: Linux", "macOS": "MacOS", "Windows": "Microsoft :: Windows"}


def test_a_classifier_of_a_system_or_a_python_has_a_run_on_record():
    runs = runs_recorded()
    claimed = {name for name in PROJECT["classifiers"] if re.match(r"Operating System|Programming .* :: 3\.\d+", name)}
    tested = {f"Operating System :: {SYSTEMS[system]}" for system, _ in runs}
    assert claimed == tested | {f"Programming Language :: Python :: {python}" for _, python in runs}


def test_no_other_classifier_names_something_that_was_not_run():
    """A framework is one that a test starts, and none is."""
    assert [name for name in PROJECT["classifiers"] if name.startswith(("Framework", "Environment :: GPU"))] == []


def test_make_and_the_workflow_take_the_pythons_that_were_run():
    minors = sorted(int(python.partition(".")[2]) for _, python in runs_recorded())
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert workflow == [f"3.{minor}" for minor in minors]
    assert f"(3, {minors[0]}) <= sys.version_info[:2] <= (3, {minors[-1]})" in read("Makefile")
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert re.search(r"for python in \$\(PYTHON\)((?: python3\.\d+)+);", read("Makefile"))[1].split() == [
        f"python3.{minor}" for minor in reversed(minors)
    ]


@pytest.mark.parametrize("line", ["9,572 passed", "9572 passed, 12 skipped, 3 deselected in 600.1s (0:10:00)"])
def test_a_closing_line_without_failures_counts(line):
    assert re.fullmatch(PASSED, line)


@pytest.mark.parametrize("line", ["", "not yet", "1 failed, 9571 passed in 600.1s", "9571 passed, 1 error"])
def test_any_other_does_not(line):
    assert not re.fullmatch(PASSED, line)


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_a_form_for_issues_can_be_read(form):
    asked = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert form.stem == "config" or {"name", "description", "body"} <= set(asked)


def test_what_security_says_is_tested_is_a_page_with_a_table():
    assert "docs/reliability.md" in read("SECURITY.md")
    assert "benchmarks/results/attack.md" in read("docs/reliability.md")
    assert "| attack | what it does | tried | survived |" in read("benchmarks/results/attack.md")


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
