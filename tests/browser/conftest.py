"""A browser, the demo's run made small, and the explorer of it."""

import shutil

import pytest

from tests.browser.looking import missing, serving

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

    from tests.browser.watching import idle

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_program, args=[*FLAGS])
        yield browser
        idle.clear()
        browser.close()


@pytest.fixture(scope="session")
def demo_folder(browser_program, tmp_path_factory):
    """The demo's run with fewer numbers and steps, and several checkpoints; made once for all workers."""
    from tests.training.small_demo import demo_once

    return demo_once(tmp_path_factory)


@pytest.fixture(scope="session")
def demo(demo_folder):
    """The run itself, to hold the page against."""
    from clearhead.training.run import load

    return load(demo_folder, device="cpu")


@pytest.fixture(scope="session")
def home(demo_folder):
    with serving(demo_folder) as address:
        yield address


@pytest.fixture
def tabs(chromium, home):
    """Opens the explorer. Whatever a test does: no error on the page, and no request to anyone else."""
    from tests.browser.watching import Tabs

    made = Tabs(chromium, home)
    yield made
    made.check()
    made.close()
