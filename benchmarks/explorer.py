"""The explorer as a browser feels it: the first picture of the demo's page, and a minute of panning a large map.

    clearhead demo
    python benchmarks/explorer.py runs/demo
    python benchmarks/explorer.py --n 512 --seconds 5          # the large map alone, small
    python benchmarks/explorer.py --deep FOLDER --text FILE    # 30 layers of 9 heads, and 4,096 tokens of the text

The large map is a head of the paper's base model, random, over 4,096 tokens. It is dragged about at three zooms while
frames are counted; tiles are timed from asked to there, with whatever else the server was doing. The heap is read
after a forced collection, before and after; `renderer` is all the memory of the page's process, tiles included.

The deep model is random, of SmolLM-135M's shape: made by `transformers` in FOLDER, with a tokenizer trained on the text
(plain or .gz), and imported. What is in FOLDER already is used again.
"""

import argparse
import contextlib
import gzip
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from measure import table
from playwright.sync_api import Browser, Page, sync_playwright

from clearhead.model import presets
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Aligned
from clearhead.training import train
from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine, Optimizer, Recipe

MEMORY = {"after the tiles": "VmRSS", "at most": "VmHWM"}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-precise-memory-info"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SITE = "encoder.3.attention"
ZOOMS, PRESSES = 3, 4
"""How many zooms, and presses of + between them: each is 1.5 times as near."""

FIRST = """() => {
    const seen = {};
    const look = () => {
        const thumbs = document.querySelectorAll("[data-testid^=thumb-]");
        const drawn = document.querySelectorAll("[data-testid^=thumb-][data-drawn]");
        if (thumbs.length > 0) seen.diagram ??= performance.now();
        if (drawn.length > 0) seen.thumbnail ??= performance.now();
        if (drawn.length > 0 && drawn.length === thumbs.length) seen.all ??= performance.now();
        if (seen.all === undefined) requestAnimationFrame(look);
        else requestAnimationFrame(() => { window.seen = seen; });
    };
    requestAnimationFrame(look);
}"""
"""Milliseconds since the page was asked for, at the frame after each is there."""

COUNT = """() => {
    window.frames_seen = [];
    const note = now => { window.frames_seen.push(now); window.counting = requestAnimationFrame(note); };
    window.counting = requestAnimationFrame(note);
}"""

ANSWERED = """part => performance.getEntriesByType("resource")
    .filter(one => one.name.includes(part) && one.responseStatus === 200)"""

TILES = f"""() => ({ANSWERED})("/tile?")
    .map(one => ({{ level: Number(new URL(one.name).searchParams.get("level")), took: one.duration }}))"""


def program() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    return found or sys.exit("there is no chromium on this machine; on Debian: apt-get install chromium")


@contextlib.contextmanager
def looking(folder: Path) -> Iterator[str]:
    """Yield the address of a run's explorer."""
    with serving(folder) as (home, _):
        yield home


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the address of a run's explorer, and the number of its process."""
    command = [sys.executable, "-m", "clearhead", "look", str(folder), "--no-open", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip(), server.pid
        finally:
            server.terminate()


def first_pictures(browser: Browser, home: str, times: int) -> list[list[object]]:
    """Of a page that is opened again and again, each time without a cache: when there is what."""
    seen = []
    for _ in range(times):
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.add_init_script(f"({FIRST})()")
        page.goto(home)
        page.wait_for_function("() => window.seen")
        seen.append(page.evaluate("window.seen"))
        context.close()
    return [
        [what, *(f"{told(one[name] for one in seen):.0f} ms" for told in (statistics.median, max))]
        for name, what in (("diagram", "the diagram"), ("thumbnail", "a thumbnail"), ("all", "all thumbnails"))
    ]


def random_base(folder: Path, n: int) -> Path:
    """A run of the base model, one step from random, that reads n tokens, one a letter."""
    draw = random.Random(0)
    lines = ["".join(draw.choices(LETTERS, k=12)) for _ in range(60)]
    files = [folder / name for name in ("source", "target")]
    for file in files:
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    recipe = Recipe(
        task="translate",
        corpus=Corpus(train=Aligned(source=(str(files[0]),), target=(str(files[1]),))),
        tokenizing=Tokenizing(kind="char"),
        model=presets.base(64, dropout=0.0),
        optimizer=Optimizer(lr=1e-6),
        batching=Batching(tokens=128, context=n),
        budget=Budget(steps=1),
        checkpointing=Checkpointing(score_records=0, samples=1),
        machine=Machine(device="cpu"),
    )
    train(folder / "run", recipe, log=lambda _: None)
    return folder / "run"


def text_of(n: int) -> str:
    return "".join(random.Random(1).choices(LETTERS, k=n - 1))


def memory(page: Page, browser: Browser) -> dict[str, float]:
    """Megabytes after a collection: the heap of the page, and all that its process holds."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.enable")
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    held = [resident(one["id"]) for one in processes if one["type"] == "renderer"]
    return {"heap": metrics["JSHeapUsedSize"] / 1e6, "renderer": max(held, default=0.0)}


def resident(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1e3


def pan(page: Page, box: dict[str, Any], seconds: float) -> list[float]:
    """Drags the map about for so long; the times of the frames that were drawn meanwhile."""
    draw, end = random.Random(2), time.monotonic() + seconds
    page.evaluate(COUNT)
    while time.monotonic() < end:
        ways = [(draw.uniform(0.3, 0.95), draw.uniform(0.35, 0.95)) for _ in range(2)]
        (x0, y0), (x1, y1) = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in ways]
        page.mouse.move(x0, y0)
        page.mouse.down()
        for step in range(1, 31):
            page.mouse.move(x0 + (x1 - x0) * step / 30, y0 + (y1 - y0) * step / 30)
        page.mouse.up()
    page.evaluate("cancelAnimationFrame(window.counting)")
    return page.evaluate("window.frames_seen")


def frames_row(name: str, frames: list[float]) -> list[object]:
    gaps = sorted(after - before for before, after in itertools.pairwise(frames))
    rate = 1e3 * len(gaps) / sum(gaps)
    return [name, f"{rate:.0f}", f"{gaps[int(0.99 * len(gaps))]:.0f} ms", f"{gaps[-1]:.0f} ms"]


def large_map(browser: Browser, home: str, n: int, seconds: float) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(120_000)
    page.add_init_script("performance.setResourceTimingBufferSize(100000)")
    began = time.monotonic()
    page.goto(f"{home}#/head?{urlencode({'source': text_of(n), 'target': 'abc', 'site': SITE, 'head': 0})}")
    canvas = page.get_by_test_id("heat-map").locator("canvas")
    canvas.wait_for()
    page.wait_for_function("() => performance.getEntriesByType('resource').some(one => one.name.includes('/tile?'))")
    print(f"\n{n:,} tokens: traced, and the map there, after {time.monotonic() - began:.1f} s")
    page.wait_for_load_state("networkidle")
    canvas.scroll_into_view_if_needed()
    box: Any = canvas.bounding_box()
    before, rows = memory(page, browser), list[list[object]]()
    for zoom in range(1, ZOOMS + 1):
        canvas.focus()
        for _ in range(PRESSES):
            page.keyboard.press("+")
        rows.append(frames_row(f"zoom x {1.5 ** (PRESSES * zoom):.0f}", pan(page, box, seconds / ZOOMS)))
    after = memory(page, browser)
    print(table("Panning", ["at", "frames a second", "99 % within", "longest frame"], rows))
    print(
        table(
            "Memory",
            ["of the page", "before", "after", "grown by"],
            [memory_row(name, before, after) for name in before],
        )
    )
    print(table("Tiles", ["each", "asked for", "median", "95 % within", "longest"], tile_rows(page.evaluate(TILES))))
    page.close()


def memory_row(name: str, before: dict[str, float], after: dict[str, float]) -> list[object]:
    return [name, f"{before[name]:.1f} MB", f"{after[name]:.1f} MB", f"{100 * (after[name] / before[name] - 1):.0f} %"]


def tile_rows(tiles: list[dict[str, float]]) -> list[list[object]]:
    rows: list[list[object]] = []
    for level in sorted({one["level"] for one in tiles}):
        took = sorted(one["took"] for one in tiles if one["level"] == level)
        shown = (statistics.median(took), took[int(0.95 * (len(took) - 1))], took[-1])
        rows.append([f"level {level:.0f}", str(len(took)), *(f"{each:.0f} ms" for each in shown)])
    return rows


def deep_run(folder: Path, text: str) -> Path:
    """Make the model with transformers and import it, unless that was done before."""
    if not (folder / "run").exists():
        save_deep_model(folder / "transformers", text)
        command = ["import", str(folder / "transformers"), str(folder / "run")]
        subprocess.run([sys.executable, "-m", "clearhead", *command], check=True, stdout=subprocess.DEVNULL)
    return folder / "run"


def save_deep_model(folder: Path, text: str) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer, end = Tokenizer(models.BPE()), "<|endoftext|>"
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=[end], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, unk_token=end).save_pretrained(folder)


def first_tokens(folder: Path, text: str, n: int) -> str:
    """Return the beginning of a text that has n tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "transformers" / "tokenizer.json"))
    return text[: tokenizer.encode(text[: 20 * n]).offsets[n - 1][1]]


def deep_model(browser: Browser, folder: Path, text: str, *, n: int, times: int) -> None:
    """Measure the first picture of a short text, the overview, and tiles of a long one."""
    run, began = deep_run(folder, text), time.monotonic()
    with serving(run) as (home, process):
        urlopen(f"{home}api/health").read()
        print(f"\n{run}: the server was there after {time.monotonic() - began:.1f} s")
        rows = first_pictures(browser, home, times)
        print(table(f"First picture, {times} times", ["there is", "median", "longest"], rows))
        for view in ("heads", "head"):
            print(f"view {view}: everything there after {view_time(browser, home, view):.1f} s")
        began = time.monotonic()
        source = first_tokens(folder, text, n)
        body = json.dumps({"source": source}).encode()
        meta = json.load(urlopen(Request(f"{home}api/trace", body, {"Content-Type": "application/json"})))
        print(f"{len(meta['sides']['decoder']['ids']):,} tokens traced in {time.monotonic() - began:.1f} s")
        took, layers = head_after_heads(browser, home, source)
        print(
            f"Head after Heads: its map after {took:.1f} s, the maps of {layers} layers being there when Heads was left"
        )
        rows = [row for site in (0, 15, 29) for row in deep_tiles(home, meta, f"decoder.{site}.attention")]
        print(table("Tiles over HTTP", ["of", "asked for", "median", "longest"], rows))
        print(table("The server", ["it holds", "memory"], server_memory(process)))


def view_time(browser: Browser, home: str, view: str) -> float:
    """Return the seconds until a view has asked for nothing more for half a second, without that half."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(120_000)
    began = time.monotonic()
    page.goto(f"{home}#/{view}")
    page.get_by_test_id(f"view-{view}").wait_for()
    page.wait_for_load_state("networkidle")
    took = time.monotonic() - began - 0.5
    page.close()
    return took


def head_after_heads(browser: Browser, home: str, source: str) -> tuple[float, int]:
    """Leave Heads for Head a second after it opens; return the seconds until the map is there.

    And the layers whose maps were there before: the server drops what nobody looks at any more, so Head need not wait
    for the others.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(120_000)
    page.add_init_script("performance.setResourceTimingBufferSize(100000)")
    page.goto(f"{home}#/heads?{urlencode({'source': source})}")
    page.wait_for_function("() => document.querySelectorAll('g.cell').length > 0")
    page.wait_for_timeout(1000)
    layers = page.evaluate(f"() => ({ANSWERED})('/thumbs?').length")
    began = time.monotonic()
    page.get_by_test_id("nav-head").click()
    page.wait_for_function(f"() => ({ANSWERED})('/tile?').length > 0")
    took = time.monotonic() - began
    page.close()
    return took, layers


def deep_tiles(home: str, meta: dict[str, Any], site: str) -> list[list[object]]:
    """Ask for tiles of heads of one layer, each for the first time, one after another."""
    draw, rows = random.Random(3), list[list[object]]()
    n = next(one["n_query"] for one in meta["sites"] if one["name"] == site)
    for level in range(5):
        across = -(-n // (256 << level))
        places = [(head, row, column) for head in range(9) for row in range(across) for column in range(across)]
        took = []
        for head, row, column in draw.sample(places, min(12, len(places))):
            asked = {"site": site, "head": head, "step": "weight", "level": level, "row": row, "column": column}
            began = time.perf_counter()
            urlopen(f"{home}api/trace/{meta['id']}/tile?{urlencode(asked)}").read()
            took.append(1e3 * (time.perf_counter() - began))
        rows.append(
            [f"{site}, level {level}", len(took), *(f"{one:.0f} ms" for one in (statistics.median(took), max(took)))]
        )
    return rows


def server_memory(process: int) -> list[list[object]]:
    """Return what the server's process holds, and the most it has held."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    held = dict(line.split(":", 1) for line in lines)
    return [[what, f"{int(held[name].split()[0]) / 1e3:,.0f} MB"] for what, name in MEMORY.items()]


def read_text(file: Path) -> str:
    return (gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8")).read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="the demo's run, for the first picture")
    parser.add_argument("--times", type=int, default=7, help="how often the page is opened")
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--deep", type=Path, help="measure 30 layers of 9 heads instead, made in this folder")
    parser.add_argument("--text", type=Path, help="the text for the deep model")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=program(), args=FLAGS)
        if args.deep is not None:
            if args.text is None:
                sys.exit("--deep needs --text, a file of some 20,000 characters or more")
            deep_model(browser, args.deep, read_text(args.text), n=args.n, times=args.times)
            browser.close()
            return
        if args.run is not None:
            with looking(args.run) as home:
                rows = first_pictures(browser, home, args.times)
            print(table(f"First picture, {args.times} times", ["there is", "median", "longest"], rows))
        with looking(random_base(Path(scratch), args.n)) as home:
            large_map(browser, home, args.n, args.seconds)
        browser.close()


if __name__ == "__main__":
    main()
