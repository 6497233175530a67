"""Record short films of the real program, and the picture that links to the site are shown with.

    clearhead demo
    python -m docs.recordings runs/demo                            # all of them, into docs/figures and site/_static
    python -m docs.recordings runs/demo --films readme social

Films of the browser show the live page of the run, opened from disk, on the text and the head that the run opens on;
which heads are switched off is chosen by what it does to the answer. A line below says what happens. Films of a
terminal are real commands in an empty folder, drawn by rich.
"""

import argparse
import html
import io
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, final
from urllib.parse import urlencode

import clearhead as ch
from clearhead.cli.attention_map import SwappedQueries, readable, swap
from docs.screenshots import FLAGS, browser, small
from num2words import num2words
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
FILES = {
    "readme": HERE / "figures/readme.webp",
    "readme-dark": HERE / "figures/readme-dark.webp",
    "learner": HERE / "figures/tour/learner.webp",
    "researcher": HERE / "figures/tour/researcher.webp",
    "practitioner": HERE / "figures/tour/practitioner.webp",
    "social": HERE.parent / "site/_static/social.png",
}
WIDTH, HEIGHT, BAR = 1200, 820, 44
GLANCE = 736, 372
"""The size of the live page at a glance: as wide as on the site, and high enough for a longer answer."""
SOCIAL = 1200, 630
QUALITY = 55
LINES = 27
"""Of the terminal."""
LONGEST = 3
"""How many times as long as the answer another may be: one that never ends says little."""
COMMANDS = (
    (
        "Two text files, and one command.",
        "clearhead train runs/numbers --task translate --source de.txt --target en.txt --minutes MINUTES",
    ),
    ("Use it.", "echo 'viertausenddreihundertelf' | clearhead translate runs/numbers"),
    (
        "Score it on text it has not seen.",
        "clearhead evaluate runs/numbers --source held-out.de --target held-out.en",
    ),
    (
        "One page that runs it in any browser.",
        "clearhead page runs/numbers -o numbers.html",
    ),
)

Frame = tuple[Image.Image, int]
"""A picture, and how many milliseconds it stays."""


class Moment(NamedTuple):
    """What a film shows for a while."""

    view: str
    state: dict[str, str]
    down: int
    """How far it is scrolled."""
    said: str


@final
@dataclass(frozen=True, kw_only=True)
class Story:
    """What the films of a run are about."""

    text: str
    before: str
    """Another text, which is there before the first one is typed."""
    answer: str
    site: str
    head: int
    swap: SwappedQueries
    looked: int
    """The key that the first query looks at."""
    off: Sequence[tuple[str, int]]
    """Heads without which the answer is another: one where one is enough."""
    robust: bool
    """Whether the answer stays without the head that is shown."""

    @property
    def place(self) -> dict[str, str]:
        return {"source": self.text, "site": self.site, "head": str(self.head)}

    @property
    def cell(self) -> dict[str, str]:
        return {**self.place, "query": "0", "key": str(self.looked)}

    def learner(self) -> list[Moment]:
        (first, _), (key, _) = self.swap.queries, self.swap.keys
        return [
            Moment(
                "model",
                self.place,
                150,
                "The text goes through encoder and decoder; every box can be opened.",
            ),
            Moment(
                "head",
                self.place,
                170,
                f"One head: to write “{first}” it looks at “{key}”.",
            ),
            Moment(
                "steps",
                {**self.cell, "at": "2"},
                170,
                "How? Its query is multiplied with every key: scores.",
            ),
            Moment(
                "steps",
                {**self.cell, "at": "3"},
                170,
                "Divided by √d, then softmax: weights, which sum to 1.",
            ),
            Moment(
                "steps",
                {**self.cell, "at": "4"},
                170,
                "The values, added up by weight, are the head's output.",
            ),
            Moment(
                "decoding",
                {**self.place, "at": "2"},
                150,
                "The answer is written token by token.",
            ),
        ]

    def researcher(self) -> list[Moment]:
        edited = {**self.place, "edits": json.dumps([head_off(self.site, self.head)])}
        outcome = (
            "the other heads make up for it" if self.robust else "the answer is another"
        )
        return [
            Moment("heads", self.place, 150, "Every head of the model at a glance."),
            Moment("head", self.place, 170, "One of them swaps tens and units."),
            Moment(
                "intervene",
                edited,
                200,
                f"Switched off: the answer before and after. Here {outcome}.",
            ),
            Moment(
                "intervene",
                edited,
                900,
                "Inside the head, unchanged and changed; any cell can be set by hand.",
            ),
            Moment(
                "meaning",
                self.place,
                150,
                "The same tokens as embeddings, as queries and keys, and as values.",
            ),
        ]


def head_off(site: str, head: int) -> dict[str, Any]:
    return {"at": site, "step": "context", "head": head, "times": 0}


def read_story(path: str) -> Story:
    """Return the story of a demo: its text and head are those that its pages open on."""
    run = ch.load(path, device="cpu")
    if not run.folder.opening_file.exists():
        sys.exit(
            f"{path}: has no {run.folder.opening_file.name}; make the run with `clearhead demo`"
        )
    opening = run.folder.read_own(run.folder.opening_file)
    text, *others = (example["source"] for example in opening["examples"])
    traced = ch.trace(run, text)
    head = 0 if opening["head"] == "mean" else opening["head"]
    weight = traced[opening["site"]].head[head].weight
    seen = swap(
        [*traced.sides["decoder"].tokens[1:], "</s>"],
        traced.sides["encoder"].tokens,
        weight,
    )
    if seen is None:
        sys.exit(
            f"{path}: no two words of {text} swap in {opening['site']}, head {head}; train the demo again"
        )

    def answer(off: Iterable[tuple[str, int]]) -> list[str]:
        edits = [
            ch.Edit(at=site, step="context", head=number, times=0.0)
            for site, number in off
        ]
        return ch.trace(run, text, edits=edits).sides["decoder"].tokens[1:]

    usual, here = answer(()), (opening["site"], head)
    off = next(
        (
            group
            for group in groups_to_switch_off(traced, here)
            if answer(group) != usual and 0 < len(answer(group)) <= LONGEST * len(usual)
        ),
        None,
    )
    if off is None:
        sys.exit(
            f"{path}: {text} stays as it is without any head, and without all heads of any layer"
        )
    return Story(
        text=text,
        before=min(others, key=len),
        answer=readable("".join(usual)).replace("▁", " "),
        site=here[0],
        head=head,
        swap=seen,
        looked=int(weight[0].argmax()),
        off=off,
        robust=answer([here]) == usual,
    )


def groups_to_switch_off(
    traced: ch.Trace, here: tuple[str, int]
) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield heads to try without, until the answer is another: one, this one first; then several of a layer.

    Cross-attention comes before the rest, as the film is about it.
    """
    sites = sorted(
        traced.sites.values(),
        key=lambda site: (site.name != here[0], site.slot != "cross"),
    )
    yield (here,)
    for site in sites:
        yield from (((site.name, head),) for head in range(site.n_heads))
    for crossing in (True, False):
        some = [site for site in sites if (site.slot == "cross") is crossing]
        for count in range(2, max(site.n_heads for site in some) + 1):
            for site in some:
                yield from combinations(
                    [(site.name, head) for head in range(site.n_heads)], count
                )


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


def film_browser(
    chromium: Browser, live: Path, story: Story, moments: list[Moment], *, typing: bool
) -> Iterator[Frame]:
    """Yield the frames of a film: a text that is typed, if asked for, then each view."""
    page = chromium.new_page(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light"
    )
    page.set_default_timeout(120_000)
    page.goto(f"{live.as_uri()}#/model?{urlencode({'source': story.before})}")
    box = page.get_by_test_id("source")
    page.get_by_test_id("view-model").first.wait_for()
    page.wait_for_timeout(1000)
    if typing:
        for end in (0, 4, 7, len(story.text)):
            box.fill(story.text[:end])
            say(
                page,
                "A model that translates number words. Type one: 24 is “four-and-twenty” in German.",
            )
            page.wait_for_timeout(200)
            yield picture(page), 1600 if end == 0 else 500
        box.press("Enter")
    for view, state, down, said in moments:
        page.goto(f"{live.as_uri()}#/{view}?{urlencode({'theme': 'light', **state})}")
        page.get_by_test_id(f"view-{view}").first.wait_for()
        page.wait_for_timeout(1500)
        page.evaluate("window.scrollTo(0, 0)")
        page.mouse.move(WIDTH / 2, HEIGHT / 2)
        page.mouse.wheel(0, down)
        page.wait_for_timeout(300)
        say(page, said)
        yield picture(page), 3500
    page.close()


def film_readme(
    chromium: Browser,
    live: Path,
    story: Story,
    theme: Literal["light", "dark"] = "light",
) -> Iterator[Frame]:
    """Yield the frames of a word that is typed, its answer and its map, and heads that are switched off."""
    width, height = GLANCE
    page = chromium.new_page(
        viewport={"width": width, "height": height + BAR},
        device_scale_factor=1.5,
        color_scheme=theme,
    )
    page.goto(f"{live.as_uri()}#/?{urlencode({'glance': 1, 'source': story.before})}")
    box, answer = page.get_by_test_id("source"), page.get_by_test_id("answer")
    answer.wait_for()
    page.locator("main").evaluate(
        "(main, height) => (main.style.minHeight = `${height}px`)", height
    )  # above the bar
    box.click()
    for end in range(len(story.text) + 1):
        box.fill(story.text[:end])
        said = "A translator that trains in a minute: clearhead demo. Type a number."
        yield moment(page, said), 700 if end == 0 else 90
    box.press("Enter")
    expect(answer).to_have_text(story.answer)
    (first, second), (later, sooner) = story.swap.queries, story.swap.keys
    yield moment(page, "It answers in English. German says “four-and-twenty”."), 2400
    said = f"“{first}” is written from “{later}”, “{second}” from “{sooner}”: attention crosses."
    yield moment(page, said), 3400
    if page.get_by_test_id("site-picker").input_value() != (site := story.off[0][0]):
        page.get_by_test_id("site-picker").select_option(site)
    for count, (_, head) in enumerate(story.off, 1):
        page.get_by_test_id("head-picker").get_by_role("button").nth(head).click()
        if count == 1:
            point_at(page, "switch-head")
            yield moment(page, "Any head of any layer can be switched off."), 1500
        page.get_by_test_id("switch-head").click()
        expect(page.get_by_test_id("switch-head")).not_to_be_checked()
        if count < len(story.off):
            said = (
                "Without one head: the others make up for it."
                if count == 1
                else f"Without {count} heads …"
            )
            yield moment(page, said), 1600 if count == 1 else 700
    expect(answer).not_to_have_text(story.answer)
    name = (
        "this head" if len(story.off) == 1 else f"{len(story.off)} heads of this layer"
    )
    yield moment(page, f"Without {name} the answer is another."), 3200
    page.close()


def moment(page: Page, said: str) -> Image.Image:
    say(page, said)
    page.wait_for_timeout(250)
    return picture(page)


def point_at(page: Page, test_id: str) -> None:
    """Draw a pointer on what is going to be clicked: a browser without a screen has none."""
    page.get_by_test_id(test_id).hover()
    page.evaluate(
        """id => {
            const { right, bottom } = document.querySelector(`[data-testid=${id}]`).getBoundingClientRect();
            const drawn = document.createElement("div");
            drawn.innerHTML = "<svg width=22 height=26><path d='M2 2v19l5-4 4 8 4-2-4-8h7z' stroke='#fff' /></svg>";
            drawn.style.cssText = `position:fixed;left:${right - 20}px;top:${bottom - 10}px;z-index:9999`;
            document.addEventListener("click", () => setTimeout(() => drawn.remove(), 1500), { once: true });
            document.body.append(drawn);
        }""",
        test_id,
    )


def social_picture(chromium: Browser, live: Path, story: Story) -> bytes:
    """Return the picture that a link to the site is shown with: the name, what it is for, and the model at a glance."""
    width, height = SOCIAL
    page = chromium.new_page(
        viewport={"width": width, "height": height}, color_scheme="light"
    )
    icon = (FILES["social"].parent / "favicon.svg").read_text(encoding="utf-8")
    card = live.with_name("social.html")
    glance = f"{live.name}#/?{urlencode({'glance': 1, **story.place})}"
    card.write_text(
        f"""<!doctype html><meta charset="utf-8"><style>
        body {{ margin: 0; padding: 44px 56px; background: #faf9f6; color: #1d1c1a; font: 31px/1.4 system-ui }}
        header {{ display: flex; gap: 22px; align-items: center; font-size: 66px; font-weight: 700; line-height: 1 }}
        svg {{ width: 84px; height: 84px }} p {{ margin: 14px 0 26px }}
        iframe {{ width: 905px; height: 334px; zoom: 1.2; border: 1px solid #c9c4b9; border-radius: 10px }}
        </style><header>{icon}Clearhead</header>
        <p>Build, train and run Transformers, and see every number inside them.</p>
        <iframe src="{html.escape(glance)}"></iframe>""",
        encoding="utf-8",
    )
    page.goto(card.as_uri())
    page.frame_locator("iframe").get_by_test_id("answer").wait_for()
    page.wait_for_timeout(1500)
    shot = page.screenshot()
    page.close()
    return small(shot)


def write_text(folder: Path) -> None:
    """Write the practitioner's files: numbers in words, one in ten held out, drawn at random.

    Not every tenth number: then no round number would be learned, and only round ones asked for.
    """
    numbers = random.Random(1).sample(range(5000), 5000)
    for language in ("de", "en"):
        words = [num2words(number, lang=language) for number in numbers]
        (folder / f"{language}.txt").write_text(
            "\n".join(words[500:]) + "\n", encoding="utf-8"
        )
        (folder / f"held-out.{language}").write_text(
            "\n".join(words[:500]) + "\n", encoding="utf-8"
        )


def run_commands(minutes: float) -> Iterator[tuple[str, str, str]]:
    """Run the practitioner's commands, and yield what is said, the command, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder))
        here = Path(sys.executable).parent
        variables = {
            **os.environ,
            "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "96",
            "NO_COLOR": "1",
        }
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
        console.print(
            Text(line, style="bold" if line.startswith("$ ") else ""),
            overflow="ellipsis",
            no_wrap=True,
        )
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
            page.set_content(
                f"<body style='margin:0;background:#fff'><div style='width:{WIDTH}px'>{svg}</div></body>"
            )
            say(page, said)
            yield picture(page), stays
    page.close()


def save(frames: Iterator[Frame], path: Path) -> None:
    """Write the frames as an animation that starts again at its end."""
    pictures, times = zip(*frames, strict=True)
    options = {
        "duration": list(times),
        "loop": 0,
        "quality": QUALITY,
        "method": 4,
        "minimize_size": True,
    }
    pictures[0].save(path, "WEBP", save_all=True, append_images=pictures[1:], **options)
    print(
        path,
        f"{path.stat().st_size / 1e3:.0f} kB, {len(pictures)} pictures, {sum(times) / 1e3:.0f} s",
    )


def main() -> None:
    """Record the films that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--films", nargs="*", default=list(FILES), choices=FILES)
    parser.add_argument(
        "--minutes", type=float, default=1, help="of the practitioner's training"
    )
    asked = parser.parse_args()
    story = read_story(asked.run)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        live = Path(temporary) / "live.html"
        subprocess.run(
            [sys.executable, "-m", "clearhead", "page", asked.run, "-o", str(live)],
            check=True,
        )
        chromium = playwright.chromium.launch(executable_path=browser(), args=FLAGS)
        films = {
            "readme": lambda: film_readme(chromium, live, story),
            "readme-dark": lambda: film_readme(chromium, live, story, "dark"),
            "learner": lambda: film_browser(
                chromium, live, story, story.learner(), typing=True
            ),
            "researcher": lambda: film_browser(
                chromium, live, story, story.researcher(), typing=False
            ),
            "practitioner": lambda: film_terminal(chromium, asked.minutes),
        }
        for name in asked.films:
            if name == "social":
                FILES[name].write_bytes(social_picture(chromium, live, story))
                print(FILES[name])
            else:
                save(films[name](), FILES[name])
        chromium.close()


if __name__ == "__main__":
    main()
