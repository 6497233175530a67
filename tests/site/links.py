"""The links of a built site: where each leads, and what a page loads by itself."""

import functools
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = {"img": "src", "script": "src", "iframe": "src", "video": "src", "source": "src"}
"""What a page fetches without a click; a `link` does so too, unless it only says how pages are related."""
RELATED = {"canonical", "next", "prev", "search", "index", "author", "license", "help", "genindex"}


@dataclass
class Links(HTMLParser):
    """What is in a page: its anchors, its links, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[key] for key in ("id", "name") if key in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        elif tag in LOADING and LOADING[tag] in named:
            self.loads.append(named[LOADING[tag]])
        elif tag == "link" and not set(named.get("rel", "").split()) & RELATED:
            self.loads.append(named.get("href", ""))


@functools.cache  # several tests read the same pages
def read_page(path: Path) -> Links:
    found = Links()
    found.feed(path.read_text(encoding="utf-8"))
    return found


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Return what pages load from another host, as `page: address`."""
    return [
        f"{path.relative_to(site)}: {address}"
        for path in sorted(site.rglob("*.html"))
        for address in read_page(path).loads
        if urlsplit(address).netloc
    ]


def broken_links(site: Path) -> list[str]:
    """Return links and loads within the site that lead to no file or to no anchor of it, as `page: address`."""
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html"))}
    broken = []
    for path, found in pages.items():
        for address in (*found.links, *found.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            state = target.name == "live.html" and parts.fragment.startswith("/")  # what the page shows, no place in it
            anchored = not parts.fragment or state or target not in pages
            anchored = anchored or unquote(parts.fragment) in pages[target].anchors
            if not target.is_file() or not anchored:
                broken.append(f"{path.relative_to(site)}: {address}")
    return broken
