"""Frames that the explorer draws while somebody scrubs: every view of a run, at 10 and at 60 moves a second.

    clearhead demo
    python benchmarks/explorer_frames.py runs/demo
    python benchmarks/explorer_frames.py runs/long --usable FILE     # how soon every view of a long text can be used
    python benchmarks/explorer_frames.py runs/demo --views model steps --rates 60 --only film

Three kinds of scrubbing: the training film's slider in the top bar, every slider of the view itself, and the pointer
over the view's pictures. Each lasts three seconds, in which a screen of 60 Hz has 180 frames. Frames are counted in the
page by requestAnimationFrame: told are the median of the frames a second, the fifth percentile (one frame in twenty is
slower), and the longest gap. Everything was shown once before, so the server and the network have no part in it.
Rendering is in software (no GPU): the two cores that draw are those that script and style run on, so mind the load,
which is printed.
"""

import argparse
import itertools
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from explorer import FLAGS, looking, program
from measure import table
from playwright.sync_api import Page, sync_playwright

SOURCE = "achtundvierzigtausendsiebenundsechzig"
VIEWS = (
    *("model", "heads", "head", "steps", "similarity", "context", "positions", "decoding", "intervene"),
    *("training", "design", "meaning", "sequence", "neurons", "tokens"),
    *("compare", "beam", "learn"),
)
STATES = {
    "decoding": {"mode": "sample", "temperature": "1.5", "top_k": "5"},
    "beam": {"mode": "beam"},
    "compare": {"beside": f"#/head?source={SOURCE}&step=32"},
    "learn": {"learn": "softmax"},
}
SHOWN_IN = {"compare": "head", "beam": "decoding", "learn": "steps"}
"""The view of a state that has another name."""
SECONDS = 3.0
REFRESH = 60

BEGIN = """() => {
    window.drawn = [];
    const note = now => { window.drawn.push(now); window.counting = requestAnimationFrame(note); };
    window.counting = requestAnimationFrame(note);
}"""
END = "() => { cancelAnimationFrame(window.counting); return window.drawn; }"

SLIDE = """([slider, rate, seconds]) => new Promise(done => {
    const [low, high, step] = [slider.min || 0, slider.max || 100, slider.step || 1].map(Number);
    const places = Math.max(1, Math.min(48, Math.round((high - low) / (step || (high - low) / 48))));
    let move = 0;
    const start = performance.now();
    const timer = setInterval(() => {
        const due = Math.floor((performance.now() - start) * rate / 1000);
        const over = performance.now() - start > 1000 * seconds || !slider.isConnected;
        if (over) clearInterval(timer);
        if (over) done(move);
        if (over || due <= move) return;
        move = due;
        const turn = move % (2 * places);
        slider.value = low + (high - low) * (turn < places ? turn : 2 * places - turn) / places;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
    }, 1000 / rate / 4);
})"""
"""Move a slider back and forth over all its places; a move that comes late is not made up for."""

PLACE = """(slider, share) => {
    const [low, high] = [slider.min || 0, slider.max || 100].map(Number);
    slider.value = low + (high - low) * share;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""
MOST_PLACES = 48


FROZEN = """() => new Promise(done => {
    let [last, longest, left] = [performance.now(), 0, 30];
    const note = now => {
        longest = Math.max(longest, now - last);
        last = now;
        if (--left > 0) requestAnimationFrame(note); else done(longest);
    };
    requestAnimationFrame(note);
})"""
"""The longest of thirty frames while nothing is done: what a view that is there costs."""


def print_usable(page: Page, home: str, args: argparse.Namespace) -> None:
    text, rows = args.usable.read_text(encoding="utf-8"), list[list[object]]()
    seconds_until_usable(page, home, "model", text)  # the first trace is the model's time, not the page's
    for view in args.views:
        rows.append(seconds_until_usable(page, home, view, text))
        print("  ".join(map(str, rows[-1])), flush=True)
        if args.shots is not None:
            page.screenshot(path=args.shots / f"{view}.png")
    heads = ["view", "usable after", "all there after", "elements", "longest idle frame"]
    print(table(f"{len(text):,} characters; load {os.getloadavg()[0]:.1f}", heads, rows))


def gaps_of(page: Page, scrub: Any) -> list[float]:
    """Return the milliseconds from each frame to the next while something was scrubbed."""
    page.evaluate(BEGIN)
    scrub()
    drawn = page.evaluate(END)
    within = [one for one in drawn if one - drawn[0] <= 1000 * SECONDS]
    return [b - a for a, b in itertools.pairwise(within)]


def told(gaps: list[float]) -> list[object]:
    """Return the median of the frames a second, the fifth percentile, and the longest gap."""
    slow = statistics.quantiles(gaps, n=20)[-1]
    return [f"{1000 / statistics.median(gaps):.0f}", f"{1000 / slow:.0f}", f"{max(gaps):.0f} ms"]


def hover(page: Page, box: dict[str, float], rate: int) -> None:
    """Move the pointer over a picture in rows, at a rate."""
    began, move = time.monotonic(), 0
    while (passed := time.monotonic() - began) < SECONDS:
        due = int(passed * rate)
        if due <= move:
            time.sleep(0.001)
            continue
        move = due
        x, y = (move % 40) / 40, (move % 173) / 173
        page.mouse.move(box["x"] + (0.03 + 0.94 * x) * box["width"], box["y"] + (0.03 + 0.94 * y) * box["height"])


def settle(page: Page, view: str) -> None:
    page.get_by_test_id(f"view-{SHOWN_IN.get(view, view)}").first.wait_for()
    page.wait_for_function("() => document.querySelector('main').getAttribute('aria-busy') === 'false'")
    page.wait_for_timeout(800)


def scrubs(page: Page, view: str, only: str | None) -> list[tuple[str, Any]]:
    """Return what can be scrubbed in a view: its name, and what does it at a rate."""
    found = list[tuple[str, Any]]()
    film = page.get_by_test_id("step-slider")
    if only in (None, "film") and film.count():
        found.append(
            ("film", lambda rate: film.evaluate_all(f"(all, given) => ({SLIDE})([all[0], ...given])", [rate, SECONDS]))
        )
    shown = f"[data-testid=view-{SHOWN_IN.get(view, view)}]"
    sliders = page.locator(f"{shown} input[type=range]:visible")
    for index in range(sliders.count() if only in (None, "sliders") else 0):
        one = sliders.nth(index)
        name = one.evaluate(
            "one => one.getAttribute('aria-label') ?? one.labels?.[0]?.innerText ?? one.dataset.testid ?? ''"
        )
        handle = one.element_handle()
        found.append(
            (
                f"slider {' '.join(name.split())[:32]}",
                lambda rate, handle=handle: page.evaluate(SLIDE, [handle, rate, SECONDS]),
            )
        )
    pictures = page.locator(f"{shown} figure [data-picture]:visible, {shown} figure canvas:visible")
    if only in (None, "pointer") and pictures.count():
        pictures.first.scroll_into_view_if_needed()
        box = pictures.first.bounding_box()
        found.append(("pointer", lambda rate: hover(page, box, rate)))
    return found


def measure(page: Page, home: str, view: str, args: argparse.Namespace) -> list[list[object]]:
    held = {"source": SOURCE if args.text is None else args.text, **STATES.get(view, {})}
    page.goto(f"{home}#/{SHOWN_IN.get(view, view)}?{urlencode(held)}")
    page.reload()
    settle(page, view)
    rows = []
    for name, scrub in scrubs(page, view, args.only):
        if name == "film":
            show_every_step(page, view)
        scrub(10)  # once for the caches, of the server too
        settle(page, view)
        row: list[object] = [view, name]
        for rate in args.rates:
            row += told([gap for _ in range(args.times) for gap in gaps_of(page, partial(scrub, rate))])
            settle(page, view)
        rows.append([*row, f"{os.getloadavg()[0]:.1f}"])
        print("  ".join(map(str, rows[-1])), flush=True)
    return rows


def show_every_step(page: Page, view: str) -> None:
    """Go to every step of the film and wait for it; a faster hand passes over those that are not kept yet."""
    slider = page.get_by_test_id("step-slider").first
    last = min(MOST_PLACES, int(slider.get_attribute("max") or 1))
    for step in range(last + 1):
        slider.evaluate(PLACE, step / last)
        page.wait_for_timeout(60)
        if view != "training":  # which goes on asking
            page.wait_for_function("() => document.documentElement.dataset.scrubbing === undefined")
        page.wait_for_function("() => document.querySelector('main').getAttribute('aria-busy') === 'false'")


def seconds_until_usable(page: Page, home: str, view: str, text: str) -> list[object]:
    """Open a view on a long text: the seconds until it is shown and not busy, and until it asks for nothing more."""
    page.goto("about:blank")
    began = time.monotonic()
    place = SHOWN_IN.get(view, view)
    page.goto(f"{home}#/{place}?{urlencode({'source': text, **STATES.get(view, {})})}")
    shown = f"[data-testid=view-{place}], [data-testid=view-absent]"
    page.wait_for_function(
        "shown => document.querySelector(shown) && document.querySelector('main').ariaBusy === 'false'",
        arg=shown,
    )
    usable = time.monotonic() - began
    if view != "training":  # which goes on asking
        page.wait_for_load_state("networkidle")
    everything = time.monotonic() - began
    elements = page.evaluate("document.querySelectorAll('*').length")
    longest = page.evaluate(FROZEN)
    return [view, f"{usable:.1f} s", f"{everything:.1f} s", f"{elements:,}", f"{longest:.0f} ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--views", nargs="*", default=list(VIEWS))
    parser.add_argument("--rates", nargs="*", type=int, default=[10, 60], help="moves a second")
    parser.add_argument("--only", choices=("film", "sliders", "pointer"))
    parser.add_argument("--times", type=int, default=1, help="how often; the frames of all are told together")
    parser.add_argument("--text", help="another text than the demo's")
    parser.add_argument("--usable", type=Path, metavar="FILE", help="instead: time every view of the text in a file")
    parser.add_argument("--shots", type=Path, help="a folder for a picture of each view, with --usable")
    args = parser.parse_args()
    with sync_playwright() as playwright, looking(args.run) as home:
        browser = playwright.chromium.launch(executable_path=program(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        if args.usable is not None:
            print_usable(page, home, args)
            browser.close()
            return
        rows = [row for view in args.views for row in measure(page, home, view, args)]
        browser.close()
    heads = [name for rate in args.rates for name in (f"fps at {rate} moves/s", "5 %", "longest gap")]
    print(
        table(
            f"Frames a second, of {REFRESH}; {os.cpu_count()} cores",
            ["view", "scrubbed", *heads, "load"],
            rows,
        )
    )


if __name__ == "__main__":
    main()
