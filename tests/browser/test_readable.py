"""What holds for every view on a desk and on a phone: no text is too small to read, and nothing runs off the side."""

import pytest

from tests.browser.test_every_view import STATES
from tests.browser.watching import VIEWS, steady

pytestmark = pytest.mark.slow

LEAST = 11
"""Pixels of the smallest letters, after all scaling."""
SIZES = {"phone": {"width": 390, "height": 844}, "desk": {"width": 1280, "height": 800}}
TOO_SMALL = """least => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode.textContent.trim(), owner = walker.currentNode.parentElement;
        if (!text || owner.closest(".hidden, title, desc, script, style, select, option")) continue;
        const box = owner.getBoundingClientRect(), style = getComputedStyle(owner);
        if (!box.width || !box.height || style.visibility === "hidden") continue;
        const matrix = owner.closest("svg") && owner.getScreenCTM?.();
        const scale = matrix ? Math.hypot(matrix.a, matrix.b) : 1;
        const size = parseFloat(style.fontSize) * scale;
        if (size < least - 0.01) found.push(`${size.toFixed(1)} px: ${text.slice(0, 30)} (${owner.tagName}.${
            owner.getAttribute("class") ?? ""})`);
    }
    return [...new Set(found)];
}"""
RUNS_OFF = """() => {
    const wide = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= wide) return [];
    return [...document.querySelectorAll("body *")]
        .filter(each => each.getBoundingClientRect().right > wide + 0.5)
        .map(each => `${each.tagName}.${each.getAttribute("class") ?? ""}: ${each.getBoundingClientRect().right}`);
}"""
PLAIN = [(view, {}) for view in ("design", "steps", "model")]
"""Some views as they open, beside the states that every view is tested in."""


@pytest.mark.parametrize(("view", "state"), [*STATES.items(), *PLAIN], ids=lambda part: part if part in VIEWS else "")
def test_no_text_is_too_small_and_nothing_runs_off_the_side(tabs, view, state):
    page = tabs.open(view, window=SIZES["phone"], **state)
    for size in SIZES.values():
        page.set_viewport_size(size)
        steady(page, view)
        assert page.evaluate(TOO_SMALL, LEAST) == [], size
        assert page.evaluate(RUNS_OFF) == [], size
