"""Builds the site of the guide, the API reference, the decisions, and the demo's model on the front page.

    python site/build.py                       # trains the demo first, unless runs/demo is there
    python site/build.py --run RUN --out FOLDER

The pages are those of the repository, in the same tree, so that their links hold on the site as they do there. Around
them come a front page, an API reference made from docstrings, the help of every command, the notebooks as pages, and
the menu, which follows docs/README.md: a page for each of its sections, whose pages fold in the menu. Sphinx makes the
site, with warnings as errors: a link that leads nowhere is one. Decisions, logs and releases are found by their titles
alone.
"""

import argparse
import contextlib
import gc
import inspect
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from sphinx.cmd.build import build_main

import clearhead as ch
from clearhead.cli import GROUPS, load_verb, run
from clearhead.serve.live import live_page

HERE = Path(__file__).parent
ROOT = HERE.parent
UNSEARCHED = ("docs/decisions/", "docs/releases/", "benchmarks/results/", "tests/", "CHANGELOG.md")
"""Beginnings of pages that the search finds by their titles alone: what people look for is in the guide."""
FOLDERS = ("docs/decisions", "docs/releases", "docs/figures", "benchmarks/results/figures")
PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "benchmarks/README.md",
    "benchmarks/results/attack.md",
    "benchmarks/results/circuits.md",
    "benchmarks/results/checks.md",
    "benchmarks/results/cpu.md",
    "benchmarks/results/gpu.md",
    "benchmarks/results/llama_cpp.md",
    "benchmarks/results/trainings.md",
    "estimator/README.md",
    "tests/docs/statements.md",
)
SECTION = re.compile(r"^\*\*(\w[\w ]*)\*\*$(.*?)(?=^\*\*|\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"^- \[[^\]]+\]\(([\w/.-]+)\)", re.MULTILINE)
SCREENSHOT = re.compile(r"!\[([^\]]*)\]\(([\w/.-]+)-(?:light|dark)\.png\)")
MODULES = {name for name in ch.__all__ if isinstance(getattr(ch, name), ModuleType)}
"""Public names that are modules: each has a page of its own."""


def assemble(folder: Path, live: Path) -> None:
    """Put together what Sphinx reads: pages of the repository, generated pages, and the live page as it is."""
    shutil.copytree(HERE / "_static", folder / "_static")
    for name in ("conf.py", "scorer.js"):
        shutil.copy(HERE / name, folder / name)
    (folder / "live").mkdir()
    shutil.copy(live, folder / "live/live.html")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    for path in [*(ROOT / name for name in PAGES), *(ROOT / "docs").glob("*.md")]:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(in_both_themes(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")
    write_decisions(folder / "docs")
    write_notebooks(folder / "notebooks")
    write_api(folder / "api")
    write_commands(folder / "commands.md")
    write_front(folder)
    leave_out_of_search(folder)


def in_both_themes(text: str, folder: Path) -> str:
    """Return a page on which a screenshot follows the reader's theme, where one of each was taken."""

    def pair(found: re.Match[str]) -> str:
        alt, name = found[1], found[2]
        if not all((folder / f"{name}-{theme}.png").is_file() for theme in ("light", "dark")):
            return found[0]
        return "\n".join(f"![{alt}]({name}-{theme}.png){{.only-{theme}}}" for theme in ("light", "dark"))

    return SCREENSHOT.sub(pair, text)


def write_decisions(docs: Path) -> None:
    """Write a page that lists the decisions, to which the guide's link to their folder leads."""
    listed = [
        (path, re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE))
        for path in sorted((docs / "decisions").glob("0*.md"))
    ]
    lines = [f"- [{title[1] if title else path.stem}]({path.name})" for path, title in listed]
    text = "# Decisions\n\nChoices that were not obvious, with what was tried and did not work.\n\n" + "\n".join(lines)
    tree = "\n\n```{toctree}\n:hidden:\n:titlesonly:\n:glob:\n\n0*\n```\n"
    (docs / "decisions/index.md").write_text(text + tree, encoding="utf-8")
    for page in docs.glob("*.md"):
        said = page.read_text(encoding="utf-8")
        page.write_text(said.replace("(decisions/)", "(decisions/index.md)"), encoding="utf-8")


def write_notebooks(folder: Path) -> None:
    """Write each notebook as a page, with the file itself to download."""
    folder.mkdir()
    index = (ROOT / "notebooks/README.md").read_text(encoding="utf-8").replace(".ipynb)", ".md)")
    tree = "\n```{toctree}\n:hidden:\n:titlesonly:\n:glob:\n\n[a-z]*\n```\n"
    (folder / "README.md").write_text(index + tree, encoding="utf-8")
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(path, folder / path.name)
        (folder / f"{path.stem}.md").write_text(notebook_page(path), encoding="utf-8")


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: under its heading a link to the file, under each cell what it shows."""
    kept = path.parent / "outputs" / f"{path.stem}.json"  # by release/notebooks.py
    parts, outputs = [], iter(json.loads(kept.read_text(encoding="utf-8"))["outputs"])
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        if cell["cell_type"] == "code":
            output = next(outputs)
            shown = (output["printed"] + output["value"]).rstrip()
            parts += [f"```output\n{shown}\n```"] if shown else []
            parts += [f"```{{raw}} html\n{output['page']}\n```"] if output["page"] else []
    heading, _, rest = parts[0].partition("\n")
    return "\n\n".join([heading, f"{{download}}`The notebook <{path.name}>`", rest.strip(), *parts[1:]]) + "\n"


def write_api(folder: Path) -> None:
    """Write a page for the names of `clearhead`, and one for each of its public modules, all from docstrings."""
    folder.mkdir()
    shown: dict[int, str] = {}
    for name in ("clearhead", *sorted(MODULES)):
        module = ch if name == "clearhead" else getattr(ch, name)
        parts = [
            f"# {'clearhead' if module is ch else f'clearhead.{name}'}",
            f"```{{eval-rst}}\n.. automodule:: {module.__name__}\n```",
        ]
        parts += [entry(module, one, shown) for one in sorted(set(module.__all__) - MODULES)]
        (folder / f"{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    tree = "\n".join(["clearhead", *sorted(MODULES)])
    text = (
        "# API\n\nThe public names, from their docstrings. What they promise: [what is stable](../docs/stability.md).\n"
    )
    (folder / "index.md").write_text(f"{text}\n```{{toctree}}\n:titlesonly:\n\n{tree}\n```\n", encoding="utf-8")


def write_commands(page: Path) -> None:
    """Write the reference of the command line: what every command says of itself with --help."""
    parts = ["# Command line\n\nThis page has the output of `clearhead COMMAND --help` for every command."]
    for group, verbs in GROUPS.items():
        parts.append(f"## {group}")
        for verb in verbs:
            parts.append(f"### {verb}\n\n```text\n{printed_help(verb)}\n```")
            inner = getattr(load_verb(verb), "commands", {})
            parts += [f"#### {verb} {name}\n\n```text\n{printed_help(verb, name)}\n```" for name in inner]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def printed_help(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run([*words, "--help"])
    return printed.getvalue().rstrip()


def entry(module: ModuleType, name: str, shown: dict[int, str]) -> str:
    """Return how a page shows a name: by autodoc, or by a line where it is a table, or has its place elsewhere."""
    value = getattr(module, name)
    if isinstance(value, ModuleType):
        return f"**{name}** is the module `{value.__name__}`."
    if isinstance(value, Mapping):
        return f"**{name}** is a table of {len(value)}: {', '.join(f'`{one}`' for one in value)}."
    if not callable(value):
        return f"**{name}**: {inspect.cleandoc(type(value).__doc__ or '')}"
    if (before := shown.setdefault(id(value), f"{module.__name__}.{name}")) != f"{module.__name__}.{name}":
        return f"**{name}** is `{before}`."
    pages = "" if ">>>" in (value.__doc__ or "") else pages_with(name)
    after = f"\n\nExample: {pages}." if pages else ""
    kind, more = ("autoclass", "\n   :members:") if inspect.isclass(value) else ("autofunction", "")
    home, said = f"{module.__name__}.{name}", ""
    if inspect.isclass(value) and value.__name__ != name:  # autodoc would only say what it is an alias of
        home, said = f"{value.__module__}.{value.__name__}", f"**{name}** is this class:\n\n"
    return f"{said}```{{eval-rst}}\n.. {kind}:: {home}{more}\n```{after}"


def pages_with(name: str) -> str:
    """Return links to pages of the guide whose code uses a name, three at most."""
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        if re.search(rf"(?<!\w){name}\b", code):
            found.append(f"[{text.partition(chr(10))[0].lstrip('# ')}](../docs/{page.name})")
    return ", ".join(found[:3])


def write_front(folder: Path) -> None:
    """Write the front page, and a page for each section of docs/README.md: the menu shows these, and folds the rest."""
    guide = (folder / "docs/README.md").read_text(encoding="utf-8")
    more = {
        "Reference": ["commands", "api/index", "notebooks/README", "docs/README"],
        "About": ["docs/releases/0.2.0", *PAGES],
    }
    names = []
    for title, text in SECTION.findall(guide):
        pages = [f"docs/{page}" for page in LINK.findall(text)] + more.get(title, [])
        names.append(title.lower().replace(" ", "-"))
        listed = text.strip().replace("](", "](docs/")
        (folder / f"{names[-1]}.md").write_text(f"# {title}\n\n{listed}\n\n{toctree(pages)}", encoding="utf-8")
    text = (HERE / "index.md").read_text(encoding="utf-8")
    (folder / "index.md").write_text(f"{text}\n{toctree(names)}", encoding="utf-8")


def toctree(pages: list[str]) -> str:
    listed = "\n".join(page.removesuffix(".md") for page in pages)
    return f"```{{toctree}}\n:hidden:\n:titlesonly:\n\n{listed}\n```\n"


def leave_out_of_search(folder: Path) -> None:
    """Mark pages whose words the search does not index."""
    for page in folder.rglob("*.md"):
        if str(page.relative_to(folder)).startswith(UNSEARCHED):
            page.write_text(f"---\nnosearch: true\n---\n\n{page.read_text(encoding='utf-8')}", encoding="utf-8")


def build(run: Path, out: Path) -> None:
    """Build the site into a folder, which is emptied; SystemExit where Sphinx has something to complain of."""
    with tempfile.TemporaryDirectory() as temporary:
        live, source = Path(temporary) / "live.html", Path(temporary) / "source"
        source.mkdir()
        live.write_text(live_page(ch.load(run, device="cpu")).text, encoding="utf-8")
        assemble(source, live)
        shutil.rmtree(out, ignore_errors=True)
        # In this process: torch is here already. What is here stays, and is not looked through as garbage.
        gc.freeze()
        gc.set_threshold(200_000, 50, 1_000)
        if build_main(["--quiet", "--builder", "html", "--fail-on-warning", "--keep-going", str(source), str(out)]):
            raise SystemExit("the site has faults: they are above")
    for page in out.rglob("*.html"):
        if page.name != "live.html":
            page.write_text(mend(page.read_text(encoding="utf-8")), encoding="utf-8")
    for left in (out / ".doctrees", out / ".buildinfo"):
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def mend(html: str) -> str:
    """Give what scrolls a place for the keyboard, and the menu's headings a level: Furo leaves out both.

    A plot is a link to itself, for a phone: there it is small, and alone on a page it can be made larger.

    >>> mend('<pre>x</pre><p role="heading">')
    '<pre tabindex="0">x</pre><p role="heading" aria-level="2">'
    >>> mend('<img alt="a plot" src="p.svg" />')
    '<a href="p.svg"><img alt="a plot" src="p.svg" /></a>'
    """
    html = re.sub(r'<img [^>]*src="([^"]+\.svg)"[^>]*>', r'<a href="\1">\g<0></a>', html)
    html = html.replace("<pre>", '<pre tabindex="0">').replace(
        '<table class="docutils', '<table tabindex="0" class="docutils'
    )
    return html.replace('role="heading">', 'role="heading" aria-level="2">')


def main() -> None:
    """Train the demo if there is none, build, and print where the site is."""
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="run of the live page (runs/demo)")
    parser.add_argument("--out", type=Path, default=Path("build/site"), help="folder of the site (build/site)")
    asked = parser.parse_args()
    if not (asked.run / "evaluation.json").exists():
        subprocess.run([sys.executable, "-m", "clearhead", "demo", "--output", str(asked.run)], check=True)
    build(asked.run, asked.out)
    print(f"{asked.out}/index.html: {len(list(asked.out.rglob('*.html')))} pages")


if __name__ == "__main__":
    main()
