"""A browser, the demo's run made small, and the explorer of it."""

import shutil
from pathlib import Path

import pytest

from tests.browser.looking import missing, serving, timed_briefly

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
HERE = Path(__file__).parent
lasting = []
"""The address of the explorer that is there for all files: windows on any other are of no use after their file."""
running = []
"""Playwright and its browser, from the first test that needs them to the last of this folder in a row."""


@pytest.fixture(scope="session")
def browser_program():
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        missing(f"there is no browser on this machine ({', '.join(BROWSERS)}); on Debian: apt-get install chromium")
    yield found
    close_browser()


@pytest.fixture(scope="module")
def chromium(browser_program):
    """The machine's browser, with the windows that tests of files before this one are done with."""
    from playwright.sync_api import sync_playwright

    if not running:
        playwright = sync_playwright().start()
        running.append(playwright)
        running.append(playwright.chromium.launch(executable_path=browser_program, args=[*FLAGS]))
    yield running[-1]
    close_idle(but=lasting)


def close_idle(*, but):
    """Close the windows that no test uses any more."""
    from tests.browser.watching import idle

    for key in [key for key in idle if key[1] not in but]:
        for page in idle.pop(key):
            page.context.close()


def close_browser():
    if running:
        close_idle(but=())
        playwright, *browsers = running
        running.clear()
        for browser in browsers:
            browser.close()
        playwright.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem):
    """Close the browser after the last test of this folder: its event loop would be in the way of other tests."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(HERE):
            close_browser()


@pytest.fixture(scope="module", autouse=True)
def soon_trained():
    with timed_briefly():
        yield


@pytest.fixture(scope="session")
def demo_folder(browser_program, tmp_path_factory):
    """The demo's run with fewer numbers and steps, and several checkpoints; made once for all workers."""
    from tests.training.small_demo import demo_once

    with timed_briefly():
        return demo_once(tmp_path_factory)


@pytest.fixture(scope="session")
def demo(demo_folder):
    """The run itself, to hold the page against."""
    from clearhead.training.run import load

    return load(demo_folder, device="cpu")


@pytest.fixture(scope="session")
def home(demo_folder):
    with serving(demo_folder) as address:
        lasting.append(address)
        yield address


@pytest.fixture
def tabs(chromium, home):
    """Opens the explorer. Whatever a test does: no error on the page, and no request to anyone else."""
    from tests.browser.watching import Tabs

    made = Tabs(chromium, home)
    yield made
    made.check()
    made.close()
