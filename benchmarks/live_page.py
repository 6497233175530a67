"""The live page in seconds: its first picture and a new sentence in Chromium, and a decoder of 10 M parameters in node.

    python benchmarks/live_page.py runs/demo      # needs chromium, node, and the built page (make web)

The page is opened from disk without a network. `first picture` is from the start of the navigation until the trace of
the first example is shown, `new text` from the key until the answer of another text is. The decoder is untrained: 64
tokens traced by the page's engine, and beside it by `clearhead.trace` on one thread, in the same run.
"""

import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile
import time

import torch
from measure import table

import clearhead as ch
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.serve.live import live_page
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run, load
from clearhead.training.tasks import Generate

WEB = pathlib.Path(__file__).parents[1] / "web"
TOKENS, REPEATS = 64, 5
LARGE = Size(8, 320, 8, 8, 1280)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
READY = "document.querySelector('main[aria-busy=false] [data-testid=answer]')"


def in_browser(page: pathlib.Path, texts: list[str]) -> list[list[object]]:
    """Return the medians of opening a page, and of tracing texts in it one after another."""
    from playwright.sync_api import sync_playwright

    opened, traced = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=[*FLAGS])
        for _ in range(REPEATS):
            context = browser.new_context(offline=True)
            tab = context.new_page()
            started = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_function(READY, polling=10)
            opened.append(time.perf_counter() - started)
            for text in texts:
                tab.get_by_test_id("source").fill(text)
                started = time.perf_counter()
                tab.keyboard.press("Enter")
                tab.wait_for_function(f"location.hash.includes({json.dumps(text)}) && {READY}", polling=10)
                traced.append(time.perf_counter() - started)
            context.close()
        browser.close()
    return [
        [f"first picture, {page.stat().st_size / 1e6:.1f} MB", round(statistics.median(opened), 2)],
        ["new text", round(statistics.median(traced), 2)],
    ]


def large_run(folder: pathlib.Path) -> tuple[Run, str]:
    """Return an untrained decoder of 10 M parameters, and a text of 64 tokens."""
    torch.manual_seed(0)
    words = [f"w{number}" for number in range(2_000)]
    tokenizer = Tokenizer.train([" ".join(words)], "word", 2_100)
    spec = presets.gpt2(LARGE, vocabulary=tokenizer.vocabulary)
    task = Generate(tokenizers={"text": tokenizer}, context=256)
    text = " ".join(random.Random(0).choices(words, k=TOKENS - 1))
    return Run(RunFolder(folder), task, spec.build().eval(), 0), text


def in_node(folder: pathlib.Path) -> list[list[object]]:
    run, text = large_run(folder)
    made = live_page(run)
    (folder / "page").write_text(f"{made.data}\n{made.weights}\n", encoding="utf-8")
    asked = "".join(f"{json.dumps(['trace', {'source': text[: len(text) - cut]}])}\n" for cut in range(0, 5))
    (folder / "asked").write_text(asked, encoding="utf-8")
    command = [WEB / "node_modules/.bin/rolldown", "dev/ask.ts", "-o", folder / "ask.mjs", "--platform", "node"]
    subprocess.run(list(map(str, command)), cwd=WEB, check=True, capture_output=True)
    command = ["node", folder / "ask.mjs", folder / "page", folder / "asked"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\n").split("\n")
    times = [json.loads(line)["ms"] / 1000 for line in found]
    torch.set_num_threads(1)
    started = time.perf_counter()
    ch.trace(run, text)
    python = time.perf_counter() - started
    what = f"{made.parameters / 1e6:.1f} M parameters, {TOKENS} tokens"
    return [
        [f"{what}, the first time", round(times[0], 2)],
        [f"{what}, then", round(statistics.median(times[1:]), 2)],
        ["the same in Python", round(python, 2)],
    ]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("run", help="the run folder of `clearhead demo`")
    run = load(asked.parse_args().run, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "live.html"
        page.write_text(live_page(run).text, encoding="utf-8")
        rows = in_browser(page, ["vierundzwanzig", "dreihundertacht", "neunhundertneunzigtausendeins"])
        print(table("The live page", ["what", "seconds"], [*rows, *in_node(pathlib.Path(folder))]))


if __name__ == "__main__":
    main()
