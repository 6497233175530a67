"""Sphinx's settings for the site. `site/build.py` copies this file beside the pages it has put together."""

import re
from importlib.metadata import version as version_of
from typing import Any

project = "Clearhead"
author = "Clearhead contributors"
copyright = "2026, Clearhead contributors"
version = release = version_of("clearhead")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["conf.py"]
suppress_warnings = ["myst.header"]  # a page may begin a section two levels down

html_theme = "furo"
html_title = "Clearhead"
html_static_path = ["_static"]
html_extra_path = ["live"]
html_css_files = ["style.css"]
html_show_sourcelink = html_copy_source = False
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


def keep_bars(_app: object, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Escape |x| in docstrings, which RST would take for a substitution; code stays as it is."""
    example = False
    for number, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            lines[number] = re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or r"\|", line)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", keep_bars)
