"""`clearhead demo`: it trains the way a user would, shows what came of it, and touches no folder but its own."""

import io
import json
import random
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import clearhead as ch
from clearhead.cli import demo, demo_page, run
from clearhead.cli.attention_map import SwappedQueries, swap
from clearhead.cli.demo_page import ROUND, DemoTranslation, english, german, render_translation
from clearhead.cli.progress import PlainProgress, open_progress
from clearhead.cli.screen import show
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.serve import live
from clearhead.serve.curves import Curves
from clearhead.serve.questions.run import run_facts
from clearhead.tracing.survey import views
from clearhead.training.folder import RunFolder
from clearhead.training.folder_lock import lock
from clearhead.training.recipe import Budget
from clearhead.training.reporting import read_metrics
from clearhead.training.run import load
from tests.training.small_demo import demo_once

pytestmark = pytest.mark.slow

REAL = demo.demo_recipe


def small_recipe(corpus, seed):
    real = REAL(corpus, seed)
    return replace(
        real,
        tokenizing=replace(real.tokenizing, size=290),
        model=presets.classic(64, size=Size(2, 16, 2, 2, 16), dropout=0.0),
        budget=Budget(steps=4),
        checkpointing=replace(real.checkpointing, log=1, evaluate=4, save=1),
    )


def shrink(monkeypatch, folder):
    """Makes the demo one of a few steps on a few numbers, with a page that is built."""
    template = folder / "live.html"
    template.write_text(f"<html>{live.PLACE}</script>\n{live.WEIGHTS}</script></html>", encoding="utf-8")
    monkeypatch.setattr(live, "TEMPLATE", template)
    monkeypatch.setattr(demo, "demo_recipe", small_recipe)
    monkeypatch.setattr(demo, "TRAIN", 150)
    monkeypatch.setattr(demo, "HELD_OUT", 20)
    monkeypatch.setattr(demo, "LEARNED", (4, 24))
    monkeypatch.setattr(demo, "ASKED", (48_067, 777_777))
    monkeypatch.setattr(demo_page, "ROUND", (100, 1_000))


@pytest.fixture
def small(monkeypatch, tmp_path_factory):
    shrink(monkeypatch, tmp_path_factory.mktemp("built"))


class Made(NamedTuple):
    """A demo that was trained, and what it printed and said."""

    path: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small demo, trained once for all the tests that only look at it."""
    home, out, err = tmp_path_factory.mktemp("made"), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch, redirect_stdout(out), redirect_stderr(err):
        shrink(monkeypatch, tmp_path_factory.mktemp("built"))
        monkeypatch.chdir(home)
        assert run(["demo"]) == 0
    return Made(home / "runs" / "demo", out.getvalue(), err.getvalue())


@pytest.fixture
def there(made, home):
    """A copy of it."""
    return shutil.copytree(made.path, home)


@pytest.fixture
def command(capsys, plain_terminal, small):
    """Runs a command: its exit code, what it printed, and what it said on stderr."""

    def ran(*args):
        code = run(args)
        return code, *capsys.readouterr()

    return ran


@pytest.fixture
def home(tmp_path):
    return tmp_path / "runs" / "demo"


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def page_data(file):
    """What was put into a page."""
    return json.loads(re.search(r'id="clearhead-data">(.*)</script>', file.read_text(encoding="utf-8"))[1])


def test_it_trains_and_leaves_a_run_with_its_text_scores_and_page(made, small):
    said = " ".join(made.err.split())
    assert "150 lines of German and English number words, short numbers many times; 20 more numbers held out" in said
    assert "dev at step 4" in made.err
    found = json.loads((made.path / "evaluation.json").read_text(encoding="utf-8"))
    assert (found["n"], found["records"], found["steps"]) == (20, 20, 4)
    assert 0 <= found["exact_match"] <= 1
    assert found["training_seconds"] > 0
    assert found["parameters"] == sum(one.numel() for one in load(made.path).model.parameters())
    drawn = demo.draw_numbers(1)
    for side, say in (("de", german), ("en", english)):
        assert lines(made.path / "data-files" / f"train.{side}")[: len(drawn.train)] == [
            say(number) for number in drawn.train
        ]
        assert lines(made.path / "data-files" / f"held-out.{side}") == [say(number) for number in drawn.held_out]
    assert page_data(made.path / "live.html")["run"]["examples"][0]["source"] == german(demo.MAPPED[0])


def test_every_page_opens_on_the_number_that_is_named_first(made, small):
    there = load(made.path)
    opening = run_facts(there, Curves(there.folder.metrics))
    assert opening["examples"] == [{"source": german(number)} for number in (24, 48_067, 777_777)]
    assert re.fullmatch(r"decoder\.[01]\.cross", opening["opening"]["site"])
    page = page_data(made.path / "live.html")["run"]
    assert (page["examples"], page["opening"]) == (opening["examples"], opening["opening"])


def test_the_view_is_one_in_which_the_first_number_swaps(made, monkeypatch):
    """Also where others say more, and show the swap of the next number."""
    there = load(made.path)
    looks = [demo_page.trace_translation(there, german(number)) for number in (24, 48_067)]
    crossing = [layer.cross for layer in looks[0].trace.decoder]
    swapped = SwappedQueries(("twenty", "four"), ("zwanzig", "vier"), (1.0, 1.0))
    for view in views(crossing):
        swapping = [view.of(looks[0].trace).tolist()]
        swapping += [other.of(looks[1].trace).tolist() for other in views(crossing)]
        monkeypatch.setattr(
            demo_page,
            "find_swap",
            lambda _, weight, swapping=swapping: swapped if weight.tolist() in swapping else None,
        )
        assert demo_page.choose_view(looks) == view


def test_the_page_says_what_came_of_it_in_80_columns(made, small):
    found, said = json.loads((made.path / "evaluation.json").read_text(encoding="utf-8")), " ".join(made.out.split())
    assert max(map(len, made.out.splitlines())) <= 80
    assert "\x1b" not in made.out
    assert re.search(r"1 digit 0 of 10 8 of them in the training text 2 digits 0 of 90 12 of them in", said)
    assert "100, 200, … 999,000 0 of 2" in said
    for digits in (3, 4, 5, 6):
        assert re.search(rf"{digits} digits \d+ of 5 held out", said)
    assert "%" not in made.out.partition("Where it looked")[0]
    assert f"{found['parameters']:,} parameters, 4 steps" in said
    for number in (*demo.LEARNED, *demo.ASKED):
        assert f"✗ {number:>7,}  {german(number)}\n" in made.out
        assert f"wanted: {english(number)}" in said
    assert "open        runs/demo/live.html\n" in made.out
    assert "Trained earlier" not in made.out


def test_what_is_right_is_marked_so_and_not_corrected(capsys, plain_terminal):
    words = english(777_777)
    show(*render_translation(DemoTranslation(number=777_777, source=german(777_777), output=words, reference=words)))
    shown = capsys.readouterr().out
    assert shown.startswith(f"  ✓ 777,777  {german(777_777)}\n             seven hundred")
    assert " ".join(shown.split()).endswith(words)
    assert "wanted" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_numbers_that_are_shown_as_new_are_never_trained_on_and_the_others_are():
    for seed in (1, 2):
        train = {*demo.draw_numbers(seed).train}
        assert not {*demo.ASKED} & train
        assert {*demo.LEARNED} <= train


def test_the_score_by_digits_counts_what_the_run_translates(made, small, monkeypatch):
    """A number is right where the run's own translation is num2words's English, and learned where its file has it."""
    rows = {row["digits"]: row for row in json.loads((made.path / "evaluation.json").read_text("utf-8"))["by_digits"]}
    assert list(rows) == ["1", "2", "3", "4", "5", "6", "round"]
    trained = set(lines(made.path / "data-files" / "train.en"))
    assert rows["2"]["learned"] == sum(english(number) in trained for number in range(10, 100))
    assert all(row["right"] == 0 for row in rows.values())

    def translate(texts, *, beam):
        """Be right for every number but those of one digit, as the demo once was."""
        return [words[text] if text not in digits else "four hundred and four" for text in texts]

    numbers = demo.draw_numbers(1)
    words = {german(number): english(number) for number in (*range(100), *numbers.held_out, 100, 1_000)}
    digits = {german(number) for number in range(10)}
    run_there = load(made.path)
    monkeypatch.setattr(run_there, "translate", translate, raising=False)
    scored = demo_page.score_by_digits(run_there, numbers)
    assert [(row["right"], row["n"]) for row in scored] == [(0, 10), (90, 90), (5, 5), (5, 5), (5, 5), (5, 5), (2, 2)]


def test_json_holds_all_that_is_shown(command, there):
    code, out, _ = command("demo", "--output", str(there), "--json")
    answer = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert answer["evaluation"] == json.loads((there / "evaluation.json").read_text(encoding="utf-8"))
    assert (answer["path"], answer["page"]) == (str(there), str(there / "live.html"))
    assert [one["number"] for one in answer["translations"]] == list(demo.ASKED)
    assert [one["right"] for one in answer["translations"]] == [
        one["output"] == english(one["number"]) for one in answer["translations"]
    ]
    assert re.fullmatch(r"decoder\.[01]\.cross", answer["attention"]["site"])
    for number, drawn in zip(demo.MAPPED, answer["attention"]["maps"], strict=True):
        assert "".join(drawn["source"]) == f"{german(number)}</s>"
        assert [len(row) for row in drawn["weight"]] == [len(drawn["source"])] * len(drawn["target"])
        assert [sum(row) for row in drawn["weight"]] == pytest.approx([1] * len(drawn["target"]), abs=1e-5)


def test_where_the_page_is_not_built_the_demo_says_how_and_goes_on(command, monkeypatch, there, tmp_path):
    monkeypatch.setattr(live, "TEMPLATE", tmp_path / "nothing.html")
    (there / "live.html").unlink()
    code, out, err = command("demo", "--output", str(there))
    assert (code, err) == (0, "")
    assert "  open        the page for a browser is not built: run `make web`\n" in out
    assert not (there / "live.html").exists()
    assert json.loads(command("demo", "--output", str(there), "--json")[1])["page"] is None


def test_the_maps_are_those_of_the_trace(command, there):
    answer = json.loads(command("demo", "--output", str(there), "--json")[1])["attention"]
    run_there = load(there)
    for number, drawn in zip(demo.MAPPED, answer["maps"], strict=True):
        made = ch.trace(run_there, german(number))
        assert drawn["target"] == [*made.sides["decoder"].tokens[1:], "</s>"]
        heads = torch.stack([head.weight for head in made[answer["site"]].head])
        wanted = heads.mean(0) if answer["head"] is None else heads[answer["head"]]
        torch.testing.assert_close(torch.tensor(drawn["weight"]), wanted)


def test_a_second_time_the_run_is_used_again(command, monkeypatch, there):
    page = (there / "live.html").read_bytes()
    weights = sorted(there.glob("checkpoints/*/*"))
    monkeypatch.setattr(demo, "train_demo", pytest.fail)
    code, out, err = command("demo", "--output", str(there))
    assert (code, err) == (0, "")
    assert "  Trained earlier, and used again; clearhead demo --again trains a new one.\n" in out
    assert (there / "live.html").read_bytes() == page
    assert sorted(there.glob("checkpoints/*/*")) == weights


def test_what_was_stopped_goes_on_and_ends_the_same(command, monkeypatch, home, made):
    class Interrupted(PlainProgress):
        def step(self, line):
            if line["step"] == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(demo, "open_progress", lambda **_: Interrupted(open_progress().console))
    assert command("demo", "--output", str(home))[0] == 130
    assert not (home / "evaluation.json").exists()
    monkeypatch.setattr(demo, "open_progress", open_progress)
    code, out, err = command("demo", "--output", str(home))
    assert code == 0
    assert "from step 2" in err
    assert "Trained earlier" not in out
    weights = [sorted(path.glob("checkpoints/*/model.safetensors"))[-1] for path in (home, made.path)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_again_trains_anew_and_another_seed_asks_for_it(command, there):
    (there / "left-over").touch()
    code, out, err = command("demo", "--output", str(there), "--seed", "2")
    assert (code, out) == (2, "")
    assert "--seed: " in err
    assert "was trained with seed 1; --again trains a new one, with 2" in err
    assert (there / "left-over").exists()
    code, out, err = command("demo", "--output", str(there), "--seed", "2", "--again")
    assert code == 0
    assert "dev at step 4" in err
    assert "Trained earlier" not in out
    assert not (there / "left-over").exists()
    numbers = demo.draw_numbers(2)
    every = (*numbers.train, *demo.spoken_numbers(numbers))
    assert lines(there / "data-files" / "train.en") == [english(number) for number in every]
    assert command("demo", "--output", str(there))[0] == 0


def test_a_short_demo_trains_few_steps_on_few_numbers(command, tmp_path, there):
    code, out, err = command("demo", "--output", str(there), "--steps", "3")
    assert (code, out) == (2, "")
    assert "--steps: " in err
    assert "has 4 steps; --again trains a new one, with 3" in err
    assert command("demo", "--output", str(there), "--steps", "4")[0] == 0
    assert command("demo", "--output", str(tmp_path / "short"), "--steps", "2")[0] == 0
    assert RunFolder(tmp_path / "short").recipe().budget.steps == 2
    assert len(demo.draw_numbers(1, 1).train) == min(demo.TRAIN, demo.SEEN_IN_A_STEP)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "is there already, and is not the demo's; choose another one with --output"),
        (["--again"], "is there already, and is not the demo's; choose another one with --output"),
    ],
)
def test_a_folder_of_somebody_else_is_left_alone(command, home, args, said):
    home.mkdir(parents=True)
    (home / "thesis.txt").write_text("years of work", encoding="utf-8")
    code, out, err = command("demo", "--output", str(home), *args)
    assert (code, out) == (1, "")
    assert err == f"clearhead: {home}: {said}\n"
    assert [path.name for path in home.iterdir()] == ["thesis.txt"]
    assert (home / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_a_marker_that_cannot_be_read_is_told(command, home):
    home.mkdir(parents=True)
    (home / demo.MARKER).write_text("{}", encoding="utf-8")
    code, out, err = command("demo", "--output", str(home), "--again")
    assert (code, out) == (1, "")
    assert "demo.json: cannot be read; remove" in err
    assert (home / demo.MARKER).exists()


def test_a_demo_in_use_is_not_removed(command, there):
    with lock(there):
        code, out, err = command("demo", "--output", str(there), "--again")
    assert (code, out) == (1, "")
    assert "is in use by process" in err
    assert (there / "evaluation.json").exists()


def test_the_run_translates_like_any_other(command, there, tmp_path):
    answer = json.loads(command("demo", "--output", str(there), "--json")[1])
    file = tmp_path / "numbers.de"
    file.write_text("".join(f"{one['source']}\n" for one in answer["translations"]), encoding="utf-8")
    code, out, _ = command("translate", str(there), str(file), "--beam", "1")
    assert code == 0
    assert out.splitlines() == [one["output"] for one in answer["translations"]]


def test_its_recipe_learns_from_the_first_steps_on(tmp_path_factory):
    """With a quarter of the tokens a step; `make test-all` trains the demo whole, for two minutes."""
    metrics = RunFolder(demo_once(tmp_path_factory)).metrics
    losses = [line["loss"] for line in read_metrics(metrics) if line["kind"] == "evaluation"]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_learns_what_people_type_and_the_swap_is_seen(seed, capsys, plain_terminal, tmp_path):
    """Every number to 100, every round one, and 99.5 % of each length: an average over all hid one digit at 9 %."""
    home = tmp_path / "demo"
    assert run(["demo", "--output", str(home), "--seed", str(seed), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    for row in answer["evaluation"]["by_digits"]:
        assert row["right"] >= (row["n"] if row["digits"] in {"1", "2", "round"} else 0.995 * row["n"]), row

    trained_on, translator = {*demo.draw_numbers(seed).train}, load(home)
    wrong = {}
    for name, numbers in fresh_draws(trained_on):
        outputs = translator.translate([german(number) for number in numbers])
        wrong[name] = [number for number, output in zip(numbers, outputs, strict=True) if output != english(number)]
        assert len(wrong[name]) <= (0 if name in {"to 100", "round"} else 0.005 * len(numbers)), wrong

    drawn = answer["attention"]["maps"][demo.MAPPED.index(24)]
    seen = swap(drawn["target"], drawn["source"], torch.tensor(drawn["weight"]))
    assert seen is not None
    assert seen.queries == ("twenty", "four")
    assert [name in key for name, key in zip(("zwan", "vier"), seen.keys, strict=True)] == [True, True], seen


def fresh_draws(trained_on):
    """Yield numbers of each length that are not in the training text, and those that everybody types."""
    yield "to 100", range(101)
    yield "round", ROUND
    for digits in (3, 4, 5, 6):
        drawn = random.Random(7).sample(range(10 ** (digits - 1), 10**digits), 900)
        yield f"{digits} digits", [number for number in drawn if number not in trained_on][:400]
