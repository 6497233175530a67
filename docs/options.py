"""Write docs/options.md, the table of the options of a recipe, from their declarations: python docs/options.py."""

import re
from pathlib import Path

from clearhead.options import Option, flag
from clearhead.training.recipe_options import GROUPS

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Options of training

`clearhead train`, `clearhead compare` and, in Python, `ch.train` take these options, with the same checks and errors.
In Python a name has underscores (`micro_batch_tokens=1024`), an option without a value is `True` or `False`, and
`--from` is `from_`. **N** stands for a whole number, **X** for any number, … for one or more.

```text
clearhead train runs/de-en --task translate --minutes 10 \\
    --source train.de --target train.en
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
        f"| {' '.join(filter(None, (spell(each), value(each))))} | {escape(each.help)} |\n"
        for each in options
    ]
    return "| option | what it does |\n|---|---|\n" + "".join(rows)


def spell(each: Option) -> str:
    spelled = flag(each.word)
    return f"`{spelled}`, `--no-{spelled[2:]}`" if each.both else f"`{spelled}`"


def value(each: Option) -> str:
    """Say what an option takes: the bounds of a number, or the kind of text."""
    if each.kind == "switch":
        return ""
    if each.kind in ("whole", "number"):
        bounds = {
            "≥ ": each.least,
            "\\> ": each.above,
            "≤ ": each.most,
            "\\< ": each.below,
        }
        told = [
            sign + ("2^64" if end == 2**64 else f"{end}")
            for sign, end in bounds.items()
            if end is not None
        ]
        return " ".join(["N" if each.kind == "whole" else "X", ", ".join(told)]).strip()
    return f"{each.takes}&nbsp;…" if each.kind == "texts" else escape(each.takes)


def escape(text: str) -> str:
    """Return a text for a cell, with options as code: two hyphens in a text would become a dash."""
    text = (
        re.sub(r"\s+", " ", text)
        .replace("|", "\\|")
        .replace("*", "\\*")
        .replace("<", "&lt;")
    )
    return re.sub(r"--[a-z][a-z-]*", r"`\g<0>`", text)


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
