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


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", to_rst)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip_fields)
