"""An address of ours comes from release/ADDRESSES, and nothing is claimed that is not there."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from release.addresses import (
    KEYS,
    PLACE,
    PLACES,
    ROOT,
    files_with_places,
    fill_places,
    read_addresses,
    with_absolute_links,
)

ADDRESSES = read_addresses((ROOT / "release/ADDRESSES").read_text(encoding="utf-8"))
EMPTY = dict.fromkeys(KEYS, "")
FILLED = {
    "SOURCE": "https://git.example/we/it",
    "SITE": "https://docs.example/it/",
    "SECURITY": "security@we.example",
    "PACKAGE": "it-by-us",
    "RELEASED": "2031-02-03",
}
# In two halves, so that this file is not found by its own search.
NAME = "clear" + "head"
OURS = re.compile(
    rf"""https?://(?!127\.0\.0\.1|localhost)[^\s"'`)>]*{NAME}   # an address with our name in it, of whatever host
      | \b{NAME}\.(?:readthedocs|github|gitlab|org|dev|ai|io|com)\b
      | \b(?:github|gitlab|codeberg)\.(?:com|org)/{NAME}
      | pip3?\ (?:install|download)\ [^\n`#&|;]*?(?<![\w/.=-]){NAME}(?![\w/-])(?!\.\w)  # asked of an index
      | pip",\s*"install"[^\n]*"{NAME}(?![\w-])
      | (?:[Rr]uns?|[Oo]pen)\ (?:it\ )?(?:on|in)\ Colab | google\.colab
      | Security\ page | [Rr]eport\ a\ vulnerability"\ on
    """,
    re.VERBOSE,
)
"""What names a place of ours on the net, or says that something can be had there."""
RECORDS = ("docs/decisions/",)
"""Pages that say what was claimed once, with what became of it."""


def text_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "grep", "-I", "--untracked", "--files-with-matches", "-e", ""]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if not name.startswith(RECORDS) and (ROOT / name).is_file()]


def outside_places(path: Path) -> str:
    return PLACE.sub("", path.read_text(encoding="utf-8", errors="replace"))


@pytest.mark.slow
def test_no_file_names_an_address_of_ours_by_hand():
    values = [re.escape(value) for key, value in ADDRESSES.items() if value and key != "RELEASED"]
    patterns = [OURS, *([re.compile("|".join(values))] if values else [])]
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in text_files()
        for pattern in patterns
        for match in pattern.finditer(outside_places(path))
        if path != ROOT / "release/ADDRESSES"
    }
    assert found == set(), "write it into release/ADDRESSES, and let release/addresses.py fill a place"


@pytest.mark.parametrize(
    "line",
    [
        f"https://github.com/{NAME}/{NAME}",
        f"see {NAME}.readthedocs.io",
        f"https://pypi.org/project/{NAME}/",
        f"pip install {NAME}",
        f"pip install '{NAME}[demo]'",
        f"pip install --quiet {NAME}==0.2",
        f'"-m", "pip", "install", "--quiet", "{NAME}[demo]"',
        "The notebooks run on " + "Colab.",
        "on the repository's Security " + "page",
    ],
)
def test_a_claim_would_be_found(line):
    assert OURS.search(line)


@pytest.mark.parametrize(
    "line",
    [
        f"pip install 'dist/{NAME}-0.2.0-py3-none-any.whl[demo]'",
        f"pip install '.[demo]'  # then {NAME} demo",
        f"http://127.0.0.1:8000/{NAME}",
        f"pip list | grep {NAME}",
        f"RUN pip install --no-cache-dir --constraint /src/constraints.txt /src && useradd --create-home {NAME}",
    ],
)
def test_what_works_in_a_clone_is_not_a_claim(line):
    assert not OURS.search(line)


def test_every_place_says_what_the_file_says():
    filled = {path: path.read_text(encoding="utf-8") for path in files_with_places()}
    stale = [path.name for path, text in filled.items() if fill_places(text, ADDRESSES) != text]
    assert stale == [], "run `python release/addresses.py`"
    used = {place["name"] for text in filled.values() for place in PLACE.finditer(text)}
    assert used == set(PLACES)


def read_filled(name: str, addresses: dict[str, str]) -> str:
    return fill_places((ROOT / name).read_text(encoding="utf-8"), addresses)


def test_addresses_that_exist_reach_every_place():
    project = tomllib.loads(read_filled("pyproject.toml", FILLED))["project"]
    assert project["urls"]["Source"] == FILLED["SOURCE"]
    assert project["urls"]["Documentation"] == FILLED["SITE"]
    assert project["optional-dependencies"]["plots"]  # the table that follows is still its own
    cited = yaml.safe_load(read_filled("CITATION.cff", FILLED))
    assert (cited["repository-code"], cited["url"]) == (FILLED["SOURCE"], FILLED["SITE"])
    assert str(cited["date-released"]) == FILLED["RELEASED"]
    assert f"by {FILLED['SECURITY']}, not in an issue" in read_filled("SECURITY.md", FILLED)
    assert "pip install 'it-by-us[demo]'" in read_filled("site/index.md", FILLED)
    assert "Released 2031-02-03." in read_filled("docs/releases/0.2.0.md", FILLED)


def test_addresses_that_do_not_exist_are_left_out():
    assert "urls" not in tomllib.loads(read_filled("pyproject.toml", EMPTY))["project"]
    assert {"repository-code", "url", "date-released"}.isdisjoint(yaml.safe_load(read_filled("CITATION.cff", EMPTY)))
    assert "No address for reports exists yet" in read_filled("SECURITY.md", EMPTY)
    assert "make wheel" in read_filled("site/index.md", EMPTY)


def test_a_key_that_is_misspelt_is_told():
    with pytest.raises(ValueError, match=r"expected the lines SOURCE, SITE, .*; came SORCE"):
        read_addresses("SORCE = https://git.example\n")


def test_links_of_the_readme_lead_into_the_source_or_are_words():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = re.findall(r"!?\[[^\]]*\]\((?!https?:|#)([^)\s]+)\)", readme)
    assert len(relative) > 10
    there = with_absolute_links(readme, "https://git.example/x")
    assert [path for path in relative if f"/main/{path})" not in there] == []
    assert "https://git.example/x/raw/main/docs/figures/" in there
    plain = with_absolute_links(readme, "")
    assert "](" not in re.sub(r"\]\(https?:", "", plain)
    assert "A tour of three minutes" in plain
