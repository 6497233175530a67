"""Take pictures of the explorer's views in a browser, light and dark, on the demo's run.

clearhead demo
python docs/screenshots.py runs/demo                       # into docs/figures/explorer
python docs/screenshots.py runs/demo --views head --out /tmp --themes light --width 390
python docs/screenshots.py runs/demo --boxes --out /tmp    # every box of the model, opened
python docs/screenshots.py runs/smol --deep                # a model of many layers: its overview, and a phone's
python docs/screenshots.py runs/copying --views induction  # of the run that docs/induction-heads.md trains
"""

import argparse
import io
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

OUT = Path(__file__).parent / "figures" / "explorer"
SOURCE = "achtundvierzigtausendsiebenundsechzig"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
COLOURS = 256
HEAD_OFF = '[{"at": "decoder.0.attention", "step": "context", "head": 2, "times": 0}]'
VIEWS: dict[str, dict[str, str]] = {
    "model": {},
    "heads": {"site": "decoder.1.cross", "head": "0"},
    "head": {"site": "decoder.1.cross", "head": "0"},
    "steps": {"site": "decoder.1.cross", "head": "0", "query": "3", "at": "4"},
    "similarity": {},
    "context": {},
    "positions": {},
    "decoding": {"at": "5"},
    "intervene": {"site": "decoder.0.attention", "head": "2", "edits": HEAD_OFF},
    "training": {"site": "decoder.1.cross", "head": "0"},
    "design": {"site": "encoder.0.attention", "preset": "same"},
    "meaning": {"site": "decoder.1.attention", "head": "0", "space": "query_key"},
    "sequence": {
        "source": "vierundzwanzig",
        "site": "decoder.1.cross",
        "head": "0",
        "query": "1",
    },
    "neurons": {"box": "decoder.1.feed_forward", "token": "3"},
    "tokens": {},
    "circuit": {"source": "vierundzwanzig"},
    "learn": {"learn": "softmax"},
    "compare": {
        "site": "decoder.1.cross",
        "head": "0",
        "query": "3",
        "beside": f"#/head?source={SOURCE}&step=32",
    },
    "sampling": {"mode": "sample", "temperature": "1.5", "top_k": "5", "tokens": "4"},
}
SHOWN_IN = {"learn": "steps", "compare": "head", "sampling": "decoding"}
"""The view of a picture that has another name."""
TWICE = "k 3 z q m 5 t b x 1 f w k 3 z q m 5 t b x 1 f"
COPYING_OFF = (
    '[{"at": "decoder.1.attention", "step": "context", "head": 0, "times": 0}]'
)
OF_OTHER_RUNS: dict[str, tuple[str, dict[str, str]]] = {
    "induction": (
        "intervene",
        {
            "source": TWICE,
            "site": "decoder.1.attention",
            "head": "0",
            "place": "22",
            "edits": COPYING_OFF,
        },
    ),
}
"""Pictures of runs that are not the demo's, taken when they are named: the view, and what its address holds."""

DEEP: dict[str, tuple[str, dict[str, str], int, str]] = {
    "deep-heads-light": (
        "heads",
        {"site": "decoder.12.attention", "head": "3"},
        1280,
        "light",
    ),
    "deep-colours-dark": (
        "heads",
        {"site": "decoder.12.attention", "head": "3", "show": "colours", "by": "first"},
        1280,
        "dark",
    ),
}
"""Pictures of a decoder of many layers, on its own example: the view, its state, the width and the theme."""


def browser() -> str:
    found = next(
        (
            path
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (path := shutil.which(name))
        ),
        None,
    )
    if found is None:
        sys.exit(
            "there is no chromium on this machine; on Debian: apt-get install chromium"
        )
    return found


def address_of(view: str, theme: str) -> str:
    view, held = OF_OTHER_RUNS.get(view) or (SHOWN_IN.get(view, view), VIEWS[view])
    return f"#/{view}?{urlencode({'source': SOURCE, 'theme': theme, **held})}"


def settled(page: Page, view: str) -> None:
    page.get_by_test_id(
        f"view-{OF_OTHER_RUNS.get(view, (SHOWN_IN.get(view, view),))[0]}"
    ).first.wait_for()
    if view == "circuit":
        page.get_by_test_id("circuit-size").wait_for()
    page.wait_for_timeout(2500)


def small(shot: bytes) -> bytes:
    """Return the picture with a palette of its own: a fifth of the size, without a visible difference."""
    made = io.BytesIO()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS).save(
        made, "PNG", optimize=True
    )
    return made.getvalue()


def picture_boxes(page: Page, address: str, theme: str, out: Path) -> None:
    """Open each box of the model's picture in turn, and save what it shows."""
    page.goto(address)
    page.reload()
    settled(page, "model")
    boxes = page.locator("g[data-testid^='box-']")
    for name in boxes.evaluate_all("found => found.map(one => one.dataset.testid)"):
        page.get_by_test_id(name).locator("rect").first.click(force=True)
        page.wait_for_timeout(400)
        shot = out / f"{name}-{theme}.png"
        shot.write_bytes(small(page.screenshot(full_page=True)))
        print(shot)
        page.keyboard.press("Escape")


def picture_deep(chromium: Browser, home: str, out: Path) -> None:
    """Save the overview of a deep model in several ways."""
    for name, (view, state, width, theme) in DEEP.items():
        page = chromium.new_page(
            viewport={"width": width, "height": 844 if width < 500 else 800}
        )
        page.set_default_timeout(300_000)
        page.goto(f"{home}#/{view}?{urlencode({'theme': theme, **state})}")
        settled(page, view)
        page.wait_for_load_state("networkidle")
        page.wait_for_function("() => document.querySelectorAll('g.cell').length > 0")
        page.wait_for_timeout(1500)
        (out / f"{name}.png").write_bytes(small(page.screenshot()))
        print(out / f"{name}.png")
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--views", nargs="*", default=list(VIEWS))
    parser.add_argument(
        "--boxes",
        action="store_true",
        help="instead of the views, every box of the model opened",
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="instead of the views, the overview of a deep decoder",
    )
    parser.add_argument("--themes", nargs="*", default=["light", "dark"])
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    clearhead = Path(sys.executable).with_name("clearhead")
    server = subprocess.Popen(
        [clearhead, "look", args.run, "--no-open"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        home = server.stdout.readline().strip()
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=browser(), args=FLAGS)
            if args.deep:
                picture_deep(chromium, home, args.out)
            for theme in [] if args.deep else args.themes:
                page = chromium.new_page(
                    viewport={"width": args.width, "height": args.height},
                    color_scheme=theme,
                )
                page.on(
                    "console",
                    lambda told: (
                        print(f"console {told.type}: {told.text}")
                        if told.type == "error"
                        else None
                    ),
                )
                page.on("pageerror", lambda error: print(f"page error: {error}"))
                if args.boxes:
                    picture_boxes(
                        page, home + address_of("model", theme), theme, args.out
                    )
                for view in [] if args.boxes else args.views:
                    # The last view must not answer to this one's address.
                    page.goto("about:blank")
                    page.goto(home + address_of(view, theme))
                    settled(page, view)
                    file = args.out / f"{view}-{theme}.png"
                    file.write_bytes(small(page.screenshot()))
                    print(file, f"{file.stat().st_size / 1e3:.0f} kB")
            chromium.close()
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main()
