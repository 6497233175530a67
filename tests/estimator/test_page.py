"""The page and the JSON of `python -m estimator`."""

import json
import re
from pathlib import Path

import pytest

from estimator.__main__ import run
from estimator.estimate import GIB

MODEL = ["llama-tiny", "--vocabulary", "301", "--target-length", "16"]


@pytest.fixture
def printed(capsys):
    """Runs the estimator with these arguments, and gives what it printed."""

    def ran(*args):
        assert run([*MODEL, *args]) == 0
        return capsys.readouterr().out

    return ran


@pytest.mark.slow
def test_the_page_and_the_json_tell_the_same(printed):
    asked = ["--gpus", "8", "--tokens", "4096", "--parallel", "fsdp", "--no-activation-checkpointing"]
    page = printed(*asked)
    assert max(map(len, page.splitlines())) <= 80
    told = json.loads(printed(*asked, "--train-tokens", "1B", "--json"))
    (form,) = told["forms"]
    assert (told["gpus"], told["chosen"], form["sequences"], form["passes"]) == (8, "fsdp", 256, 1)
    memory = form["memory"]
    parts = [size for name, size in memory.items() if name not in ("total", "capacity")]
    assert sum(parts) == memory["total"]
    assert re.search(rf"in all +{memory['total'] / GIB:.2f}", page)
    assert re.search(rf"tokens a second +{form['tokens_per_second']:,.0f}", page)
    assert form["gpu_hours"] == pytest.approx(1e9 / form["tokens_per_second"] * 8 / 3600)
    assert "it fits" in page


def test_nonsense_is_told_in_two_lines(capsys):
    for args, said in (
        (["--gpus", "0"], "takes a whole number, 1 or more"),
        (["--gpus", "64", "--tokens", "100"], "too few for 64 GPUs"),
        (["--parallel", "tensor"], "there is no 'tensor'"),
        (["--gpus", "2", "--link-gb-s", "0"], "takes a number, above 0"),
    ):
        assert run([*MODEL, *args]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert len(err.splitlines()) == 2


@pytest.mark.slow
def test_the_pages_in_the_docs_are_what_is_printed(capsys):
    text = (Path(__file__).parents[2] / "estimator" / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```text\n\$ python -m estimator ([^\n]*)\n(.*?)```", text, re.DOTALL)
    assert len(commands) == 2
    for args, page in commands:
        assert run(args.split()) == 0
        assert capsys.readouterr().out.split() == page.split()
