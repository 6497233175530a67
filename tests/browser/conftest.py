"""A browser, the demo's run made small, and `clearhead look` of it in a process of its own."""

import shutil
from dataclasses import replace

import pytest

from tests.browser.looking import looking, missing
from tests.once import made_once

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


@pytest.fixture(scope="session")
def browser_program():
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        missing(f"there is no browser on this machine ({', '.join(BROWSERS)}); on Debian: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def chromium(browser_program):
    """The machine's browser. Not for longer than a module: its event loop would be in the way of other tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_program, args=[*FLAGS])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def demo_folder(browser_program, tmp_path_factory):
    """The demo's run with fewer numbers and steps, and several checkpoints; made once for all workers."""
    return made_once(tmp_path_factory, "demo", lambda home: train_small(home / "run", home / "files")) / "run"


def train_small(folder, files):
    import torch

    from clearhead import training
    from clearhead.cli.demo import corpus, demo_recipe
    from clearhead.cli.number_words import draw
    from clearhead.training.recipe import Batching, Budget, Checkpointing, Machine

    recipe = replace(
        demo_recipe(corpus(draw(1, train=3_000, held_out=60), files), 1),
        batching=Batching(tokens=1024, context=64),
        budget=Budget(steps=90),
        checkpointing=Checkpointing(log=5, evaluate=30, checkpoints=3, select="last", score_records=5),
        machine=Machine(device="cpu", threads=1),
    )
    threads = torch.get_num_threads()
    try:
        training.train(folder, recipe, log=lambda _: None)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def demo(demo_folder):
    """The run itself, to hold the page against."""
    from clearhead.training.run import load

    return load(demo_folder, device="cpu")


@pytest.fixture(scope="session")
def home(demo_folder):
    with looking(demo_folder) as address:
        yield address


@pytest.fixture
def tabs(chromium, home):
    """Opens the explorer. Whatever a test does: no error on the page, and no request to anyone else."""
    from tests.browser.watching import Tabs

    made = Tabs(chromium, home)
    yield made
    made.check()
    made.close()
