"""Write docs/options.md, the table of the options of a recipe, from their declarations: python docs/options.py."""

import re
from pathlib import Path

from clearhead.options import Option, flag
from clearhead.training.recipe_options import GROUPS

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Options of training

These are the options of a recipe: what `clearhead train` and `clearhead compare` take on the command line, and
`ch.train` in Python, with the same words, checks and errors. In Python a word has underscores
(`micro_batch_tokens=1024`), a switch is `True` or `False`, and `--from` is `from_`.

```text
clearhead train runs/de-en --task translate --source train.de --target train.en --minutes 10
```

```text
ch.train("runs/de-en", task="translate", source="train.de", target="train.en", minutes=10)
```
"""


def make_page() -> str:
    """Return the page: a table for each group of options."""
    return HEAD + "".join(
        f"\n## {title}\n\n{make_table([*group.values()])}"
        for title, group in titled().items()
    )


def titled() -> dict[str, dict[str, Option]]:
    return {
        re.sub(r" \(.*", "", title).replace("Options", "Task"): {**group}
        for title, group in GROUPS.items()
    }


def make_table(options: list[Option]) -> str:
    rows = [
        f"| {spell(each)} | `{each.word}` | {value(each)} | {escape(each.help)} |\n"
        for each in options
    ]
    return (
        "| option | in Python | value | what it does |\n|---|---|---|---|\n"
        + "".join(rows)
    )


def spell(each: Option) -> str:
    spelled = flag(each.word)
    return f"`{spelled}`, `--no-{spelled[2:]}`" if each.both else f"`{spelled}`"


def value(each: Option) -> str:
    """Say what an option takes: the bounds of a number, or the kind of text."""
    if each.kind == "switch":
        return "switch"
    if each.kind in ("whole", "number"):
        return each.expects
    return (
        "one or more of " + each.takes if each.kind == "texts" else escape(each.takes)
    )


def escape(text: str) -> str:
    return (
        re.sub(r"\s+", " ", text)
        .replace("|", "\\|")
        .replace("*", "\\*")
        .replace("<", "&lt;")
    )


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
