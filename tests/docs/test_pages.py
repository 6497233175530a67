"""Every page of the guide runs, and prints what it says it prints; and the runner notices when one does not."""

import json
import re
import shlex
from pathlib import Path

import pytest

import clearhead as ch
from clearhead.cli import load_verb
from tests.docs import small_gpt2
from tests.docs.pages import PageError, blocks, run_page, write_outputs
from tests.docs.strangers import needs_gpt2, run_as_stranger, run_once_as_stranger
from tests.once import made_once

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
NAMESPACES = (ch.similarity, ch.weighting, ch.positions, ch.masks)


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


LONG = ("export", "fine-tuning", "gpt2-circuits", "induction-heads", "why-q-k-v-differ", "how-layers-cooperate")
"""Pages that take most of a minute, or whose time is that of trainings, and whose every step has tests of its own:
tests/interop/export and tests/plain/test_export_graphs.py, tests/training/test_fine_tuning.py and
tests/interop/test_stranger.py, tests/tracing/test_head_metrics.py and test_edits.py,
tests/attention/test_layer.py, and the test of the recipe below. Their commands are held to the options there are.
"""


def named(pages: list[Path]) -> pytest.MarkDecorator:
    marked = [pytest.param(page, marks=pytest.mark.thorough if page.stem in LONG else ()) for page in pages]
    return pytest.mark.parametrize("page", marked, ids=lambda page: f"{page.parent.name}/{page.stem}")


EVERY = [*PAGES, DOCS.parent / "README.md"]
WITH_COMMANDS = [page for page in EVERY if any(block.shell for block in blocks(page))]


def made_gpt2(page: Path, factory: pytest.TempPathFactory) -> Path:
    if page.stem == "gpt2-circuits":
        return (
            made_once(factory, "gpt2-trained-here", lambda home: small_gpt2.save_trained_here(home / "gpt2")) / "gpt2"
        )
    return made_once(factory, "small-gpt2", small_gpt2.save)


@pytest.mark.slow
def test_the_gpt2_that_is_trained_here_is_written_as_gpt2s_files_and_read_back(tmp_path):
    small_gpt2.save_trained_here(tmp_path / "gpt2", steps=3, lines=200)
    assert json.loads((tmp_path / "gpt2/config.json").read_text(encoding="utf-8"))["model_type"] == "gpt2"
    trained = ch.load(tmp_path / "gpt2-training/run", device="cpu")
    again = ch.import_model(tmp_path / "gpt2", tmp_path / "again", device="cpu", log=lambda line: None)
    text = "When Mary and John went to the store, John gave a drink to"
    assert ch.trace(again, text).candidates[-1][0].text == ch.trace(trained, text).candidates[-1][0].text
    before, after = (ch.attribute(run, text, answer=5).total for run in (trained, again))
    assert before == pytest.approx(after, abs=1e-4)


@pytest.mark.slow
@named(WITH_COMMANDS)
def test_page_as_a_stranger(page: Path, tmp_path, tmp_path_factory):
    if page.stem == "induction-heads":  # tests/browser/test_induction.py looks at the model that it trains
        run_once_as_stranger(page, tmp_path_factory)
    else:
        gpt2 = made_gpt2(page, tmp_path_factory) if needs_gpt2(page) else None
        run_as_stranger(page, tmp_path, gpt2=gpt2)


@pytest.mark.slow
@pytest.mark.usefixtures("tables_as_they_were", "trained_once")
@named([page for page in EVERY if page not in WITH_COMMANDS])
def test_page(page: Path):
    run_page(page)


def commands(page: Path) -> list[list[str]]:
    """Every `clearhead` command in the shell blocks of a page, as the words of a shell."""
    lines = [line for block in blocks(page) if block.shell for line in block.code.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r"[|;>]|&&", line)]
    return [shlex.split(part, comments=True)[1:] for part in parts if part.startswith("clearhead ")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_commands_of_a_page_name_verbs_and_options_that_there_are(page):
    for verb, *words in commands(page):
        there = {"--help"}.union(*(option.opts for option in load_verb(verb).params))
        assert {word for word in words if word.startswith("-")} <= there, [verb, *words]


def test_there_are_pages():
    assert {"README.md", "attention.md", "misconceptions.md"} <= {page.name for page in PAGES}


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in index] == []


def test_a_how_to_has_fewer_than_six_hundred_words():
    section = re.search(r"^\*\*How to\*\*$(.*?)^\*\*", (DOCS / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert section is not None
    pages = re.findall(r"^- \[[^\]]+\]\(([\w-]+\.md)\)", section[1], re.MULTILINE)
    texts = {
        page: re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.M | re.S)
        for page in pages
    }
    lengths = {page: sum(bool(re.search(r"\w", word)) for word in text.split()) for page, text in texts.items()}
    assert len(pages) > 15
    assert {page: length for page, length in lengths.items() if length >= 600} == {}


def headings(page: Path) -> set[str]:
    """What a link to a heading of this page is written as."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        assert (DOCS / name).exists(), target
        assert not heading or heading in headings(DOCS / name if name else page), target


def test_the_errors_of_the_page_are_ones_that_the_package_raises():
    said = re.findall(r"^\| \*([^*]+)\* \|", (DOCS / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    package = "".join(path.read_text(encoding="utf-8") for path in (DOCS.parent / "clearhead").rglob("*.py"))
    assert len(said) > 10
    assert [one for one in said if one not in package] == []


def test_the_guide_names_everything_public():
    guide = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    public = [*ch.__all__, *(name for parts in NAMESPACES for name in parts.__all__)]
    assert [name for name in public if not re.search(rf"\b{name}\b", guide)] == []


def test_blocks_of_a_page_share_their_names_and_print_in_turn(tmp_path):
    page = "```python\nx = 2\n```\nthen\n```python\nprint(x + 1)\nprint(4)\n```\n\n```output\n3\n4\n```\n"
    assert run_page(write(tmp_path, page))["x"] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# A page\n\n```python\nx = 1\nassert x == 2\n```\n", r"page\.md, line 5: AssertionError"),
        ("```python\nprint(3)\n```\n\n```output\n4\n```\n", r"page\.md, line 2: should print\n4\n\nbut printed\n3"),
        ("```python\nprint(3)\nprint(3)\n```\n```output\n3\n```\n", r"page\.md, line 2: should print"),
        ("```python\nprint(3)\n```\n", r"page\.md, line 2: should print\n\nbut printed\n3"),
        ("```python\nx = 3\n```\n```output\n3\n```\n", r"page\.md, line 2: should print\n3"),
        ("```python\nx = (\n```\n", r"page\.md, line 2: SyntaxError"),
        (
            "```python\nx = 1\n```\n\n```python\ndef f():\n    1 / 0\n\n\nf()\n```\n",
            r"page\.md, line 10: ZeroDivisionError",
        ),
        (
            "```python\nx = 1\n```\ntext between\n```output\n1\n```\n",
            r"page\.md, line 5: an output block without a python",
        ),
        ("```output\n1\n```\n", r"page\.md, line 1: an output block without a python"),
        ("```py\nx = 1\n```\n", r"page\.md, line 1: a block is python, shell, output or text, not 'py'"),
        ("```\nx = 1\n```\n", r"page\.md, line 1: a block is python, shell, output or text, not 'nameless'"),
    ],
)
def test_a_page_that_does_not_hold_fails_and_names_its_line(tmp_path, text, said):
    with pytest.raises(PageError, match=said):
        run_page(write(tmp_path, text))


@pytest.mark.slow
def test_a_stranger_has_a_folder_a_file_and_commands_of_their_own(tmp_path):
    page = (
        "```python\n# mine.py\nx = 2\n```\n"
        "```shell\nclearhead --version\nls\n```\n```output\nclearhead ...\nmine.py\n```\n"
        "```python\nimport clearhead, mine\nprint(mine.x, clearhead.__file__.split('/')[-3])\n```\n"
        "```output\n2 installed\n```\n"
    )
    run_as_stranger(write(tmp_path, page), tmp_path / "home")
    with pytest.raises(PageError, match=r"page\.md, line 2: ended with 2: clearhead: No such command 'sing'"):
        run_as_stranger(write(tmp_path, "```shell\nclearhead sing\n```\n"), tmp_path / "other")


def test_dots_stand_for_text_within_a_line_and_no_more(tmp_path):
    page = "```python\nprint({printed!r})\n```\n```output\n... run\n0 failed\n```\n"
    run_page(write(tmp_path, page.format(printed="12 run\n0 failed")))
    for printed in ("12 run\n1 failed", "1\n2 run\n0 failed"):
        with pytest.raises(PageError, match="should print"):
            run_page(write(tmp_path, page.format(printed=printed)))


def test_the_sign_of_a_rounded_zero_does_not_matter_and_that_of_a_number_does(tmp_path):
    page = "```python\nprint({printed!r})\n```\n```output\n[0.0, 0, -0.5]\n```\n"
    run_page(write(tmp_path, page.format(printed="[-0.0, -0, -0.5]")))
    with pytest.raises(PageError, match="should print"):
        run_page(write(tmp_path, page.format(printed="[0.0, 0, 0.5]")))


def test_a_page_starts_from_the_same_seed(tmp_path):
    page = write(tmp_path, "```python\nimport torch\nx = torch.rand(1).item()\n```\n")
    assert run_page(page)["x"] == run_page(page)["x"]


def test_outputs_can_be_written_into_a_page(tmp_path):
    page = (
        "```python\nprint(1)\n```\n\n```output\n{}```\nand\n```python\nprint('2 run')\n```\n```output\n... run\n```\n"
    )
    path = write(tmp_path, page.format("old\n"))
    write_outputs(path)
    assert path.read_text(encoding="utf-8") == page.format("1\n")
