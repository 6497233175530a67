"""`clearhead kernels`: the promise of support.py, as it stands there."""

import json

from clearhead.attention.grid.support import KERNEL_NAMES, PAIRS, REASONS, ROWS
from clearhead.cli import run


def printed(capsys, *args):
    assert run(["kernels", *args]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_every_row_of_the_promise_is_printed_under_its_axis(capsys, plain_terminal):
    rows, axis = {}, None
    for line in printed(capsys).splitlines():
        words = line.split()
        if tuple(words[-len(KERNEL_NAMES) :]) == KERNEL_NAMES:
            axis = words[0]
        elif axis and words and set(words[-len(KERNEL_NAMES) :]) <= {"yes", *REASONS}:
            part = " ".join(words[: -len(KERNEL_NAMES)])
            rows[f"{axis} {part}"] = dict(zip(KERNEL_NAMES, words[-len(KERNEL_NAMES) :], strict=True))
    assert rows == ROWS


def test_every_letter_and_every_pair_has_its_reason_below(capsys, plain_terminal):
    page = printed(capsys)
    for letter, why in REASONS.items():
        assert f"\n  {letter}  … {why} …\n" in page
    for one, other, _, why in PAIRS:
        assert f"{one} + {other}, on " in page
        assert f"… {why} …" in page


def test_the_page_fits_80_columns_without_escape_codes(capsys, plain_terminal):
    page = printed(capsys)
    assert max(len(line) for line in page.splitlines()) <= 80
    assert "\x1b" not in page


def test_json_holds_the_whole_promise(capsys, plain_terminal):
    answer = json.loads(printed(capsys, "--json"))
    assert answer["kernels"] == list(KERNEL_NAMES)
    assert {f"{axis} {part}": row for axis, parts in answer["parts"].items() for part, row in parts.items()} == ROWS
    assert answer["reasons"] == REASONS
    assert [(*pair["parts"], pair["reason"]) for pair in answer["pairs"]] == [(a, b, why) for a, b, _, why in PAIRS]
    assert all(set(pair["kernels"]) <= set(KERNEL_NAMES) for pair in answer["pairs"])
