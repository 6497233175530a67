"""Record the tour's three short films from the real program: two in the browser, one in a terminal.

    clearhead demo
    python -m docs.recordings runs/demo                  # into docs/figures/tour
    python -m docs.recordings runs/demo --films learner --out /tmp

A film is an animated WebP: a picture for each moment, with a line below that says what happens. In the browser it is
the live page of the run, opened from disk. In the terminal they are real commands in an empty folder, drawn by rich.
"""

import argparse
import io
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from num2words import num2words
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from docs.screenshots import FLAGS, browser

__all__ = ["terminal_picture"]

OUT = Path(__file__).parent / "figures" / "tour"
WIDTH, HEIGHT, BAR = 1200, 820, 44
QUALITY = 55
LINES = 27
"""Of the terminal."""
TYPED = "siebenundvierzig"
SITE = {"source": TYPED, "site": "decoder.1.cross", "head": "0"}
CELL = {**SITE, "query": "0", "key": "1"}
OFF = '[{"at": "decoder.1.cross", "step": "context", "head": 0, "times": 0}]'
LEARNER = (
    ("model", {"source": TYPED}, 150, "The text goes through encoder and decoder; every box can be opened."),
    ("head", SITE, 170, "One head: rows are written, columns are read. To write “forty” it looks at “vierzig”."),
    ("steps", {**CELL, "at": "2"}, 170, "How? Its query is multiplied with every key: scores."),
    ("steps", {**CELL, "at": "3"}, 170, "Divided by √d, then softmax: weights, which sum to 1."),
    ("steps", {**CELL, "at": "4"}, 170, "The values, added up by weight, are the head's output."),
    ("decoding", {"source": TYPED, "at": "2"}, 150, "The answer is written token by token, with its probabilities."),
)
RESEARCHER = (
    ("heads", SITE, 150, "Every head of the model at a glance."),
    ("head", SITE, 170, "One of them swaps tens and units."),
    (
        "intervene",
        {**SITE, "edits": OFF},
        200,
        "Switched off: the answer before and after. Here the other heads make up for it.",
    ),
    ("intervene", {**SITE, "edits": OFF}, 900, "Inside the head, unchanged and changed; any cell can be set by hand."),
    ("spaces", SITE, 150, "The same tokens as embeddings, as queries and keys, and as values."),
)
"""A film's moments: the view, its state, how far it is scrolled down, and what is said."""
COMMANDS = (
    (
        "Two text files, and one command.",
        "clearhead train runs/numbers --task translate --source de.txt --target en.txt --minutes MINUTES",
    ),
    ("Use it.", "echo 'viertausenddreihundertelf' | clearhead translate runs/numbers"),
    ("Score it on text it has not seen.", "clearhead evaluate runs/numbers --source held-out.de --target held-out.en"),
    ("One page that runs it in any browser.", "clearhead page runs/numbers -o numbers.html"),
)

Frame = tuple[Image.Image, int]
"""A picture, and how many milliseconds it stays."""


def say(page: Page, text: str) -> None:
    """Show a line below the page, as a subtitle."""
    page.evaluate(
        """([text, height]) => {
            let bar = document.getElementById("said");
            if (!bar) { bar = document.createElement("div"); bar.id = "said"; document.body.append(bar); }
            bar.textContent = text;
            bar.style.cssText = `position:fixed;left:0;right:0;bottom:0;height:${height}px;z-index:9999;` +
                "background:#1d1c1a;color:#fff;font:18px/44px system-ui,sans-serif;padding:0 16px;white-space:nowrap";
        }""",
        [text, BAR],
    )


def picture(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def film_browser(chromium: Browser, live: Path, moments: tuple, *, typing: bool) -> Iterator[Frame]:
    """Yield the frames of a film: a text that is typed, if asked for, then each view."""
    page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page.set_default_timeout(120_000)
    page.goto(f"{live.as_uri()}#/model?{urlencode({'theme': 'light'})}")
    box = page.get_by_test_id("source")
    page.get_by_test_id("view-model").first.wait_for()
    page.get_by_role("button", name="No, thanks").click()
    page.wait_for_timeout(1000)
    if typing:
        for end in (0, 6, 9, len(TYPED)):
            box.fill(TYPED[:end])
            say(page, "A model that translates number words. Type one: 47 is “seven-and-forty”.")
            page.wait_for_timeout(200)
            yield picture(page), 1600 if end == 0 else 500
        box.press("Enter")
    for view, state, down, text in moments:
        page.goto(f"{live.as_uri()}#/{view}?{urlencode({'theme': 'light', **state})}")
        page.get_by_test_id(f"view-{view}").first.wait_for()
        page.wait_for_timeout(1500)
        page.evaluate("window.scrollTo(0, 0)")
        page.mouse.move(WIDTH / 2, HEIGHT / 2)
        page.mouse.wheel(0, down)
        page.wait_for_timeout(300)
        say(page, text)
        yield picture(page), 3500
    page.close()


def write_text(folder: Path) -> None:
    """Write the practitioner's files: numbers in words, one in ten held out, drawn at random.

    Not every tenth number: then no round number would be learned, and only round ones asked for.
    """
    numbers = random.Random(1).sample(range(5000), 5000)
    for language in ("de", "en"):
        words = [num2words(number, lang=language) for number in numbers]
        (folder / f"{language}.txt").write_text("\n".join(words[500:]) + "\n", encoding="utf-8")
        (folder / f"held-out.{language}").write_text("\n".join(words[:500]) + "\n", encoding="utf-8")


def run_commands(minutes: float) -> Iterator[tuple[str, str, str]]:
    """Run the practitioner's commands, and yield what is said, the command, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder))
        here = Path(sys.executable).parent
        variables = {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "96", "NO_COLOR": "1"}
        for said, template in COMMANDS:
            command = template.replace("MINUTES", f"{minutes:g}")
            done = subprocess.run(
                ["bash", "-c", f"{command} 2>&1"],
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                sys.exit(f"{command}: {done.stdout}")
            yield said, command, done.stdout


def terminal_picture(lines: list[str], title: str) -> str:
    """Return a terminal with these lines as an SVG that needs no font from elsewhere."""
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text(line, style="bold" if line.startswith("$ ") else ""), overflow="ellipsis", no_wrap=True)
    # rich's own format fetches a font from a CDN.
    plain = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, code_format=plain)


def film_terminal(chromium: Browser, minutes: float) -> Iterator[Frame]:
    """Yield a frame for each command as it is typed, and one for what it printed."""
    page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    shown: list[str] = []
    for said, command, printed in run_commands(minutes):
        words = shlex.split(command)
        shown += [f"$ {command}" if len(command) < 96 else f"$ {' '.join(words[:5])} …"]
        for more, stays in ([], 1200), (printed.rstrip().splitlines()[-13:], 3500):
            shown += more
            seen = shown[-LINES:]
            svg = terminal_picture([*seen, *[""] * (LINES - len(seen))], "clearhead")
            page.set_content(f"<body style='margin:0;background:#fff'><div style='width:{WIDTH}px'>{svg}</div></body>")
            say(page, said)
            yield picture(page), stays
    page.close()


def save(frames: Iterator[Frame], path: Path) -> None:
    """Write the frames as an animated WebP that starts again at its end."""
    pictures, times = zip(*frames, strict=True)
    options = {"duration": list(times), "loop": 0, "quality": QUALITY, "method": 4, "minimize_size": True}
    pictures[0].save(path, "WEBP", save_all=True, append_images=pictures[1:], **options)
    print(path, f"{path.stat().st_size / 1e3:.0f} kB, {len(pictures)} pictures, {sum(times) / 1e3:.0f} s")


def main() -> None:
    """Record the films that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--films", nargs="*", default=["learner", "researcher", "practitioner"])
    parser.add_argument("--minutes", type=float, default=1, help="of the practitioner's training")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        live = Path(temporary) / "live.html"
        subprocess.run([sys.executable, "-m", "clearhead", "page", asked.run, "-o", str(live)], check=True)
        chromium = playwright.chromium.launch(executable_path=browser(), args=FLAGS)
        films = {
            "learner": lambda: film_browser(chromium, live, LEARNER, typing=True),
            "researcher": lambda: film_browser(chromium, live, RESEARCHER, typing=False),
            "practitioner": lambda: film_terminal(chromium, asked.minutes),
        }
        for name in asked.films:
            save(films[name](), asked.out / f"{name}.webp")
        chromium.close()


if __name__ == "__main__":
    main()
