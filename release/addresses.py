"""Writes what release/ADDRESSES says into the places that name an address of ours: one file, and nothing by hand.

    python release/addresses.py

A place is what stands between a line "from release/ADDRESSES: NAME" and the next line "end", as comments of the file.
While an address is empty, the place says what is true in a clone.
"""

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEYS = ("SOURCE", "SITE", "SECURITY", "PACKAGE", "RELEASED")
PLACE = re.compile(
    r"^(?P<begin>(?:#|<!--) from release/ADDRESSES: (?P<name>\w+)(?: -->)?\n)"
    r"(?P<text>.*?)"
    r"^(?P<end>(?:#|<!--) end(?: -->)?)$",
    re.MULTILINE | re.DOTALL,
)


def read_addresses(text: str) -> dict[str, str]:
    """Return the values of `KEY = value` lines; ValueError for a line or a key that is not known."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    if tuple(found) != KEYS:
        raise ValueError(f"release/ADDRESSES: expected the lines {', '.join(KEYS)}; came {', '.join(found)}")
    return found


def urls(addresses: Mapping[str, str]) -> Iterable[str]:
    """Yield the table of links for pyproject.toml."""
    source, site = addresses["SOURCE"], addresses["SITE"]
    if source or site:
        yield "[project.urls]"
    if site:
        yield f'Documentation = "{site}"'
    if source:
        yield f'Source = "{source}"'
        yield f'Issues = "{source}/issues"'
        yield f'Changelog = "{source}/blob/main/CHANGELOG.md"'


def citation(addresses: Mapping[str, str]) -> Iterable[str]:
    """Yield the lines of CITATION.cff that name an address or a day."""
    if addresses["RELEASED"]:
        yield f"date-released: {addresses['RELEASED']}"
    if addresses["SOURCE"]:
        yield f"repository-code: {addresses['SOURCE']}"
    if addresses["SITE"]:
        yield f"url: {addresses['SITE']}"


def baseurl(addresses: Mapping[str, str]) -> Iterable[str]:
    """Yield the line of site/conf.py with the site's address."""
    site = addresses["SITE"]
    yield f'html_baseurl = "{site.rstrip("/")}/"' if site else 'html_baseurl = ""'


def reporting(addresses: Mapping[str, str]) -> Iterable[str]:
    """Yield the sentences of SECURITY.md that say where to report."""
    if where := addresses["SECURITY"]:
        yield f"Report a vulnerability in private, by {where}, not in an issue."
    else:
        yield "No address for reports exists yet. Write in private to the person who gave you this copy, not in public."


def install(addresses: Mapping[str, str]) -> Iterable[str]:
    """Yield the commands that install Clearhead with what its demo needs."""
    yield "```text"
    if name := addresses["PACKAGE"]:
        yield f"pip install '{name}[demo]'"
    else:
        version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        yield "make wheel         # in a clone: builds the package, with the explorer's page inside"
        yield f"pip install 'dist/clearhead-{version}-py3-none-any.whl[demo]'"
    yield "```"


def release(addresses: Mapping[str, str]) -> Iterable[str]:
    """Yield the first line of the notes for a release: its day, or that there was none."""
    if addresses["RELEASED"]:
        yield f"Released {addresses['RELEASED']}."
    else:
        yield "Not released yet: no package index has it, and the date is open."


PLACES: dict[str, Callable[[Mapping[str, str]], Iterable[str]]] = {
    place.__name__: place for place in (urls, citation, baseurl, reporting, install, release)
}


def fill_places(text: str, addresses: Mapping[str, str]) -> str:
    """Return a file's text with every place filled from the addresses.

    >>> empty = dict.fromkeys(KEYS, "")
    >>> print(fill_places("# from release/ADDRESSES: citation\\nurl: somewhere\\n# end", empty))
    # from release/ADDRESSES: citation
    # end
    """

    def fill(found: re.Match[str]) -> str:
        lines = "".join(f"{line}\n" for line in PLACES[found["name"]](addresses))
        return f"{found['begin']}{lines}{found['end']}"

    return PLACE.sub(fill, text)


def with_absolute_links(text: str, source: str) -> str:
    """Return Markdown for a page outside the repository, such as a package index: relative links lead nowhere there.

    With an address of the source they lead into it; without one links become plain words, and pictures are left out.

    >>> with_absolute_links("![head](docs/head.png) See [the tour](docs/tour.md).", "")
    ' See the tour.'
    >>> with_absolute_links("See [the tour](docs/tour.md#next).", "https://example.org/x")
    'See [the tour](https://example.org/x/blob/main/docs/tour.md#next).'
    """

    def change(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if source:
            return f"{picture}[{words}]({source}/{'raw' if picture else 'blob'}/main/{path})"
        return "" if picture else words

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)", change, text)


def files_with_places() -> list[Path]:
    """Return the files of the repository that have places to fill."""
    command = ["git", "grep", "--files-with-matches", "--untracked", "-e", "^\\(#\\|<!--\\) from release/ADDRESSES: "]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names]


def main() -> None:
    """Fill the places of every file, and print which files changed."""
    addresses = read_addresses((ROOT / "release/ADDRESSES").read_text(encoding="utf-8"))
    for path in files_with_places():
        before = path.read_text(encoding="utf-8")
        after = fill_places(before, addresses)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
