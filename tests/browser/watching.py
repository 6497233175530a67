"""Pages under watch: what they ask for and what they complain of, and the few moves that every test makes."""

import re
import time
from urllib.parse import parse_qs, urlencode

from playwright.sync_api import expect

SOURCE = "achtundvierzigtausendsiebenundsechzig"
SITE = "decoder.1.cross"
NUMBERED = (
    *("model", "heads", "head", "steps", "sequence"),
    *("similarity", "meaning", "context", "positions", "neurons"),
)
"""The views that a digit of the keyboard goes to."""
VIEWS = (*NUMBERED, "circuit", "decoding", "tokens", "training", "intervene", "design", "exercises")
USUAL_SIZE = {"width": 1280, "height": 800}
PATIENCE = 120_000
"""Milliseconds that anything on a page may take on a busy machine."""
NUMBER = re.compile(r"(−?)(\d+(?:\.(\d+))?)(?:e(−?)(\d+))?")

expect.set_options(timeout=PATIENCE)


STICKY = ("theme", "edits", "unchanged", "lang", "projector", "beside")
"""What a page may keep though a later address does not name it: the theme, edits, which can be undone, the language.

So a window is used again only for an address with the same ones.
"""
GO = """async hash => {
    if (new URL(hash, location.href).href === location.href) return;
    const gone = new Promise(resolve => addEventListener("hashchange", resolve, { once: true }));
    location.replace(hash);
    await gone;
    await new Promise(resolve => setTimeout(resolve));
}"""
"""Go to another address of the page that is there: at the end, whatever that asks for is asked."""
TURN = """() => new Promise(done => {
    const { dataset } = document.documentElement;
    const drawn = () => {
        if ("scrubbing" in dataset || "turns" in dataset) requestAnimationFrame(drawn);
        else setTimeout(() => setTimeout(done));
    };
    requestAnimationFrame(drawn);
    setTimeout(done, 5000);
})"""
"""Wait until the page has drawn a frame and done what was to be done by then, and no slider moves.

(A tab behind another one draws none, and `requestIdleCallback` does not come while the pointer moves.)
"""
under_way = {}
"""What each page has asked for and is not answered yet."""
idle = {}
"""Windows that a test is done with, by the browser, the explorer and the options and state they were opened with."""


class Tabs:
    """Opens the explorer in tabs, and sees to it that nothing is wrong in any of them but what a test provokes.

    To load the page takes ten times as long as to go to another address in it. So `open` takes a window that an earlier
    test of the file is done with, where there is one: everything a view shows is in its address.
    """

    def __init__(self, browser, home):
        self.browser, self.home = browser, home
        self.provoked, self.complaints, self.strangers, self.contexts = [], [], [], []
        self.opened = []

    def context(self, *, dark=False, **options):
        """A window of its own, without motion, so that nothing need be waited for."""
        size = USUAL_SIZE | sizes_of(options)
        options = {name: value for name, value in options.items() if name not in size}
        made = self.browser.new_context(
            viewport=size,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            **options,
        )
        made.set_default_timeout(PATIENCE)
        self.watch(made)
        return made

    def watch(self, context):
        self.contexts.append(context)
        for event, follow in self.watchers().items():
            context.on(event, follow)

    def watchers(self):
        return {
            **{"console": self.told, "weberror": self.broke, "requestfailed": self.failed, "request": self.asked},
            **{"requestfinished": ended, "response": refused},
        }

    def told(self, message):
        if message.type == "error":
            self.complain(message.text)

    def broke(self, error):
        self.complain(str(error.error))

    def failed(self, request):
        """Complain of a request without an answer, unless the page itself aborted it as it asks for something else."""
        ended(request)
        if request.failure != "net::ERR_ABORTED":
            self.complain(f"{request.url}: {request.failure}")

    def complain(self, told):
        if not any(words in told for words in self.provoked):
            self.complaints.append(told)

    def asked(self, request):
        if request.url.startswith("http"):
            page = request.frame.page
            if request.is_navigation_request():
                under_way[page] = set()
            under_way.setdefault(page, set()).add(request)
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.strangers.append(request.url)

    def open(self, view="model", *, source=SOURCE, window=(), fresh=False, **state):
        """A view, in a window of its own: a tab behind another one is slow. `fresh`: one that nobody has used."""
        hash_ = f"#/{view}?{urlencode({'source': source, **state})}"
        options = tuple(sorted((name, value) for name, value in dict(window).items() if name not in USUAL_SIZE))
        key = self.browser, self.home, options, sticky(state)
        if idle.get(key) and not fresh:
            page = idle[key].pop()
            self.watch(page.context)
            page.set_viewport_size(USUAL_SIZE | sizes_of(window))
            # Through another view, so that nothing is left of what the first test did in this one.
            page.evaluate(GO, f"#/{'steps' if view == 'model' else 'model'}?{urlencode({'source': source})}")
            page.evaluate(GO, hash_)
        else:
            page = self.context(**dict(window)).new_page()
            page.goto(f"{self.home}{hash_}")
        shown(page, view)
        self.opened.append((key, page))
        return page

    def reopen(self, page):
        """The same address in a fresh window."""
        fresh = self.context().new_page()
        fresh.goto(address_of(page))
        return fresh

    def check(self):
        assert not self.complaints, f"the page complained: {self.complaints}"
        assert not self.strangers, f"the page asked others than its own server: {self.strangers}"

    def close(self):
        """Close every window, but for those that another test can use."""
        left = [(key, page) for key, page in self.opened if not self.complaints and is_as_new(page, self.home, key[-1])]
        kept = [page.context for _, page in left]
        for context in self.contexts:
            if context not in kept:
                context.close()
        for key, page in left:
            for event, follow in self.watchers().items():
                page.context.remove_listener(event, follow)
            under_way.pop(page, None)
            idle.setdefault(key, []).append(page)


def sizes_of(window):
    return {name: value for name, value in dict(window).items() if name in USUAL_SIZE}


def sticky(state):
    return tuple(str(state.get(name)) for name in STICKY)


def is_as_new(page, home, opened_with):
    """Return whether a window shows the explorer and nothing new that stays when it goes to another address."""
    if page.is_closed() or len(page.context.pages) > 1 or not page.url.startswith(home):
        return False
    if sticky(state(page)) != opened_with:
        return False
    page.mouse.move(0, 0)
    return page.evaluate(
        """() => {
            document.activeElement?.blur();
            scrollTo(0, 0);
            const typed = document.querySelector("[data-testid=source]")?.value;
            const asked = new URLSearchParams(location.hash.split(/\\?(.*)/s)[1]).get("source");
            return !document.querySelector("dialog[open], [role=alert]") && (typed === undefined || typed === asked);
        }"""
    )


def ended(request):
    if request.url.startswith("http"):
        under_way.get(request.frame.page, set()).discard(request)


def refused(response):
    """Take an error for an answer as soon as it is there: nobody may want to read more of it."""
    if not response.ok:
        ended(response.request)


def rests(page):
    """Wait until all that the page has asked for is answered and drawn.

    What is read or pointed at then is what was asked for last, and stays where it is. (Playwright's "networkidle" is no
    help: it holds for ever once it has been so.)
    """
    end = time.monotonic() + PATIENCE / 1000
    calm = 0
    while calm < 2:
        page.evaluate(TURN)
        calm = 0 if under_way.get(page) else calm + 1
        assert time.monotonic() < end, f"still asked for: {[one.url for one in under_way[page]]}"


def eventually(page, check, *given):
    """Wait until a check of what the page shows holds; return what it says. It is asked again where it fails."""
    end = time.monotonic() + PATIENCE / 1000
    while True:
        try:
            found = check(*given)
        except AssertionError:
            if time.monotonic() > end:
                raise
        else:
            if found or time.monotonic() > end:
                assert found, f"{check} does not come true"
                return found
        page.wait_for_timeout(50)


def point_at(page, element, across, down, *, until):
    """Move the pointer to a place of an element, in shares of its size, until a locator is there for it.

    The element is looked for again before each move: it may have been drawn anew, elsewhere or in another size.
    """

    def move():
        box = element.bounding_box()
        page.mouse.move(0, 0)
        page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        rests(page)
        return until.count() > 0

    eventually(page, move)


def address_of(page):
    """As the page itself knows it, once it holds all of the view: it is written at most four times a second (REST in
    web/src/lib/state.svelte.ts), and a timer of the page that is set later than that one comes after it.
    """
    return page.evaluate("new Promise((done) => setTimeout(() => done(location.href), 300))")


def state(page):
    """What the address holds, beside the view."""
    return {name: values[0] for name, values in parse_qs(address_of(page).partition("?")[2]).items()}


def comes_to(page, **wanted):
    """Wait until the address holds these, and the page shows it; a slider writes there only when it rests."""
    page.wait_for_function(
        """wanted => {
            const held = new URLSearchParams(location.hash.split(/\\?(.*)/s)[1]);
            return Object.entries(wanted).every(([name, value]) => held.get(name) === value);
        }""",
        arg={name: str(value) for name, value in wanted.items()},
    )
    rests(page)


def shown(page, view):
    """Wait for a view, and for all that it shows."""
    page.get_by_test_id(f"view-{view}").wait_for()
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    rests(page)


def ask(page, text, target=""):
    """Types a text, and looks."""
    page.get_by_test_id("source").fill(text)
    page.get_by_test_id("target").fill(target)
    page.get_by_test_id("look").click()
    comes_to(page, source=text)


def tab_to(page, target, *, most=250):
    """Goes with the tab key alone until an element has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{target} is not reached by {most} tabs")


def number_in(text):
    """The first number of a text, and half of its last digit; a percentage as a share."""
    if "−∞" in text:
        return float("-inf"), 0.0
    found = NUMBER.search(text)
    assert found, f"there is no number in {text!r}"
    minus, digits, decimals, small, power = found.groups()
    size = 10.0 ** ((-1 if small else 1) * int(power or 0)) * (0.01 if "%" in text[found.end() :][:2] else 1)
    return float(digits) * (-1 if minus else 1) * size, 0.5 * 10 ** -len(decimals or "") * size


def says(text, value):
    """Whether a text says a number, to the digits that it shows. "<0.1 %" says any that is smaller."""
    found, half = number_in(text)
    if text.lstrip().startswith("<"):
        return 0 <= value < found
    if found == value:
        return True
    return abs(found - value) <= half * 1.001 + 2e-5 * abs(value) + 1e-9


def steady(page, view):
    """The words of a view, once nothing more is asked for and they no longer change."""
    part = page.get_by_test_id(f"view-{view}")
    if view == "training":  # it asks again and again; the head at a checkpoint comes last, once its weights are loaded
        part.locator("figure").nth(1).wait_for()
    before, now = None, part.text_content()
    while now != before:
        rests(page)
        before, now = now, part.text_content()
    return now
