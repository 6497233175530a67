"""Sphinx's settings for the site. `site/build.py` copies this file beside the pages it has put together."""

import functools
import re
from html import escape
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from docutils import nodes
from sphinx import addnodes
from sphinx.search.en import SearchEnglish

project = "Clearhead"
author = "Clearhead contributors"
copyright = "2026, Clearhead contributors"
version = release = version_of("clearhead")

summary = "Build, train and run Transformers in PyTorch, and see every number inside them."

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_attr_annotations = False
napoleon_use_ivar = True  # fields with a docstring under them are shown by autodoc already
exclude_patterns = ["conf.py"]
suppress_warnings = ["myst.header"]  # a page may begin a section two levels down

html_theme = "furo"
html_title = "Clearhead"
html_static_path = ["_static"]
html_extra_path = ["live"]
html_css_files = ["style.css"]
html_js_files = ["theme.js", "copy.js"]
html_favicon = "_static/favicon.svg"
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
# from release/ADDRESSES: baseurl
html_baseurl = ""
# end
html_show_sourcelink = html_copy_source = html_use_index = html_domain_indices = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#005f99",
        "color-brand-content": "#005f99",
        "color-brand-visited": "#6b3fa0",
        "color-foreground-muted": "#595959",
        "color-api-keyword": "#595959",
    },
    "dark_css_variables": {
        "color-brand-primary": "#5cb8f5",
        "color-brand-content": "#5cb8f5",
        "color-brand-visited": "#c5a3f0",
        "color-foreground-muted": "#a8a8a8",
        "color-api-keyword": "#a8a8a8",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# Links to headings as the guide writes them: by the rule of GitHub, which tests/docs checks and MyST follows.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]  # for `{.only-dark}` after a picture

# Docstrings have code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
toc_object_entries_show_parents = "hide"


def to_rst(_app: object, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Turn what docstrings take from Markdown into RST: escape |x|, a substitution there, and indent fenced code."""
    example = fenced = False
    written = []
    for line in lines:
        if line.strip() == "```":
            fenced = not fenced
            written += ["::", ""] if fenced else [""]
            continue
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if fenced:
            written.append(f"   {line}")
        else:
            written.append(line if example else re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or r"\|", line))
    lines[:] = written


def shorten(_app: object, _what: str, _name: str, _obj: object, _options: object, signature: str, returns: str) -> Any:
    """Shorten a signature that autodoc could not read, for a default has no form in Python: a function is `...`."""
    if not signature or "~" not in signature:
        return None
    return re.sub(r"~(?:\w+\.)*(\w+)", r"\1", re.sub(r"<function [\w.]*(<lambda>)?>", "...", signature)), returns


def skip_fields(_app: object, _what: str, _name: str, obj: Any, _skip: bool, _options: object) -> bool | None:
    """Leave out the fields of named tuples: their docstrings count them, and the signature has them."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


class Search(SearchEnglish):
    """The search for English, in which a word is cut to its stem once for all pages, not once for each."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.stem = functools.cache(super().stem)


def menu_of_titles(app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Let the menu be made from the titles of pages alone: it shows no more, and each page has a menu of all others."""
    env, whole = app.env, context.get("toctree")
    if whole is None:
        return
    if not hasattr(app, "titles_of_pages"):
        app.titles_of_pages = {name: titles_in(toc) for name, toc in env.tocs.items()}

    def made(**options: Any) -> str:
        every, env.tocs = env.tocs, app.titles_of_pages if options.get("titles_only") else env.tocs
        try:
            return whole(**options)
        finally:
            env.tocs = every

    context["toctree"] = made


def card_of_links(app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    """Say what a link to a page is shown with elsewhere. Its picture is by docs/recordings.py; no page loads it.

    Its address is absolute as soon as the site has one: others do not read a relative one.
    """
    social = "_static/social.png"
    said = {
        "og:type": "website",
        "og:site_name": project,
        "og:title": re.sub(r"<[^>]+>", "", context.get("title") or project),
        "og:description": summary,
        "og:image": urljoin(app.config.html_baseurl, social)
        if app.config.html_baseurl
        else context["pathto"](social, 1),
        "og:image:width": "1200",
        "og:image:height": "630",
        "og:image:alt": "The attention of a small Transformer that translates vierundzwanzig: it crosses",
    }
    tags = [f'<meta property="{name}" content="{escape(text)}">' for name, text in said.items()]
    tags += [
        f'<meta name="description" content="{summary}">',
        '<meta name="twitter:card" content="summary_large_image">',
    ]
    context["metatags"] = (context.get("metatags") or "") + "\n".join(tags)


def titles_in(toc: nodes.Element) -> nodes.Element:
    """Return a page's table of contents without its sections: its title, and the trees of pages below it."""
    kept = toc.deepcopy()
    for title in kept.children:
        if isinstance(title, nodes.Element) and len(title) > 1:
            below = list(title.findall(addnodes.toctree))
            title[1:] = [nodes.bullet_list("", *below)] if below else []
    return kept


def setup(app: Any) -> None:
    app.add_search_language(Search)
    app.connect("html-page-context", menu_of_titles, priority=400)  # Furo makes the menu at 500
    app.connect("html-page-context", card_of_links)
    app.connect("autodoc-process-docstring", to_rst)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip_fields)
