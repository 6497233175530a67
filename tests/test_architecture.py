"""The walks of docs/architecture.md are as short as it says, counted strictly (tests/hops.py)."""

import re
import sys
from pathlib import Path

import pytest
import torch

import clearhead as ch
from clearhead.cli import run
from tests.hops import ROOT, Hops
from tests.serve.api_serving import serving

RULES = ch.Rules(max_new=4)


@pytest.mark.parametrize("method", [ch.Greedy(), ch.Sample(), ch.Beam(width=2)])
def test_one_generate(method):
    torch.manual_seed(0)
    model = ch.presets.gpt2("tiny", vocabulary=20).build()
    with Hops() as hops:
        ch.generate(model, [[5, 6, 7]], method, rules=RULES)
    [chain] = hops.deepest.values()
    assert any("FullCache" in name for name in chain), chain
    assert len(chain) <= 12, "\n".join(chain)


def test_one_completion(stretch):
    """The event loop's walk to where the job is handed over, and the model's from there."""
    with Hops("Jobs.add", "QueueLink.put") as hops, serving([stretch]) as client:
        hops.deepest.clear()
        client.answer("/v1/completions", prompt="the cat", max_tokens=4)
    walks = "\n\n".join("\n".join(chain) for chain in hops.deepest.values())
    assert "FullCache" in walks, walks
    assert sum(map(len, hops.deepest.values())) <= 25, walks


SMALL = ("--vocabulary=300", "--batch-tokens=64", "--context=8", "--threads=1", "--size=40k", "--steps=2", "-q")
PAGE = Path(__file__).parents[1] / "docs/architecture.md"


def walk_of_the_page() -> list[tuple[list[str], list[str]]]:
    """Return the functions and the files of each row of the page's table of a training."""
    table = PAGE.read_text("utf-8").partition("## From `clearhead train` to the first step")[2]
    rows = re.findall(r"^\| \d+ \| (.*?) \| (.*?) \|", table, re.MULTILINE)
    return [(re.findall("`(.*?)`", functions), re.findall("`(.*?)`", files)) for functions, files in rows]


def test_a_training_walks_as_the_page_says(tmp_path):
    """Each function of the table is called, in its order, from the command to the first step."""
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven\n" * 60)
    called = dict[tuple[str, str], int]()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            *_, kind, name = ["", *frame.f_code.co_qualname.split(".")]
            where = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
            called.setdefault((where, kind if name == "__init__" else name), len(called))

    sys.setprofile(note)
    try:
        code = run(["train", str(tmp_path / "run"), "--task=generate", f"--text={text}", *SMALL])
    finally:
        sys.setprofile(None)
    assert code == 0
    order = []
    for functions, files in walk_of_the_page():
        names = [name.rpartition(".")[2] for name in functions]
        calls = [call for (where, name), call in called.items() if where.startswith(tuple(files)) and name in names]
        assert calls, f"{functions} of {files} is not called"
        order.append(min(calls))
    *walk, _ = order  # steps are taken before too, when they are timed
    assert walk == sorted(walk)
    assert len(order) <= 20
