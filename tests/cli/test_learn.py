"""`clearhead learn`: files with empty functions, what is said of them, hints, solutions and lines to hand in."""

from dataclasses import replace

import pytest

from clearhead.cli import learn, run
from clearhead.exercises import EXERCISES, answers


@pytest.fixture
def command(capsys, plain_terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def ran(*args):
        code = run(["learn", *map(str, args)])
        return code, *capsys.readouterr()

    return ran


def test_a_file_of_empty_functions_is_written_once_and_checked_in_order(command, tmp_path):
    code, out, _ = command("write", "mine.py")
    assert (code, out.splitlines()[-2:]) == (0, ["· dot-product: not written yet", "0 of 14"])
    path = tmp_path / "mine.py"
    path.write_text(path.read_text().replace("    ...", "    return a @ b", 1))
    code, out, _ = command("write", "mine.py")
    assert out.splitlines() == ["✓ dot-product: right", "· scores: not written yet", "1 of 14"]
    assert "return a @ b" in path.read_text()


@pytest.mark.slow
def test_all_solutions_in_one_file_are_right(command, tmp_path):
    solutions = [each.solution for each in EXERCISES.of_kind("write")]
    (tmp_path / "mine.py").write_text("\n\n".join(solutions))
    lines = command("write", "mine.py")[1].splitlines()
    assert lines[-2:] == ["14 of 14", "Next: clearhead learn train mine.py"]
    assert {"✓ softmax: right", "✓ output (layer): right", "✓ kv-cache (step): right"} <= {*lines}


def test_a_puzzle_is_written_checked_and_looked_at(command, tmp_path):
    assert "reverse.py says what is asked" in command("solve", "reverse")[1]
    assert "answer = ..." in (tmp_path / "reverse.py").read_text()
    assert command("solve", "reverse")[1].splitlines() == ["· reverse: not written yet"]
    (tmp_path / "reverse.py").write_text(EXERCISES["reverse"].solution)
    _, out, _ = command("solve", "reverse")
    assert out.startswith("✓ reverse: right\n    It compiles into 4 layers, 2 heads, 5 operations.")
    assert "See its weights: clearhead craft look reverse.py:answer --alphabet 'abc' --length 6" in " ".join(
        out.split()
    )
    assert "✓  reverse" in command("list")[1]


def test_a_solution_is_shown_after_a_try_alone(command, tmp_path):
    code, _, err = command("solution", "sort")
    assert code == 1
    assert "sort: try it first; clearhead learn hint sort helps" in err
    (tmp_path / "sort.py").write_text("from clearhead.rasp import tokens\n\nanswer = tokens\n")
    command("solve", "sort")
    assert "rank" in command("solution", "sort")[1]


def test_each_call_shows_the_next_hint(command):
    first, second, third = (command("hint", "reverse")[1] for _ in range(3))
    assert first != second == third
    assert first.splitlines()[-1] == "Hint 1 of 2."
    assert "Hint 2 of 2, the last. After a try: clearhead learn solution reverse" in " ".join(third.split())
    german = command("hint", "rotate", "--language", "de")[1]
    assert german.startswith("Der Rest")
    assert "Hinweis 1 von 1, der letzte." in german
    handed = command("hand-in", "--name", "Ada")[1]
    assert handed.split("; ")[-3] == "3"  # two hints of reverse and one of rotate; a repeated one does not count


def test_hand_in_lines_become_a_table_and_slips_are_named(command, tmp_path):
    (tmp_path / "reverse.py").write_text(EXERCISES["reverse"].solution)
    command("solve", "reverse")
    [line] = command("hand-in", "--name", "Ada")[1].splitlines()
    (tmp_path / "class.txt").write_text(
        f"{line}\n\n{line.replace('Ada', 'Adam')}\nhello\n", encoding="utf-8-sig", newline="\r\n"
    )
    code, out, _ = command("class", "class.txt")
    assert code == 0
    assert "Ada" in out
    assert f"1 of {len(EXERCISES)}" in out
    assert "line 2: the line does not fit its checksum" in out
    assert "line 3: expected a line as `clearhead learn hand-in` or a lesson prints it" in out


def test_what_is_wrong_is_said_in_a_sentence(command):
    assert "Did you mean 'reverse'?" in command("solve", "revers")[2]
    assert "clearhead learn write FILE checks it" in command("solve", "softmax")[2]
    assert "class.txt: cannot be read (No such file or directory)" in command("class", "class.txt")[2]
    assert "nowhere" in command("write", "nowhere/mine.py")[2]
    assert "Errno" not in command("write", "nowhere/mine.py")[2]


def test_the_list_is_in_german_too(command):
    assert "Attention selbst schreiben" in command("list", "--language", "de")[1]


def test_a_slip_is_shown_with_every_number_and_found(command, tmp_path):
    _, out, _ = command("solve", "slip-3")
    assert "slip-3.py says what is asked" in out
    assert "━━ decoder.1.attention" in out
    assert "weight, head 1" in out
    again = "Every number again: clearhead learn solve slip-3 --numbers"
    assert command("solve", "slip-3")[1].splitlines() == ["· slip-3: not written yet", again]
    numbers = command("solve", "slip-3", "--numbers")[1]
    assert numbers.endswith("· slip-3: not written yet\n")
    assert numbers.splitlines()[:-1] == out.splitlines()[1:]
    assert "--numbers: reverse has no numbers to print; slip-1 slip-2" in command("solve", "reverse", "--numbers")[2]
    (tmp_path / "slip-3.py").write_text(EXERCISES["slip-3"].solution)
    assert command("solve", "slip-3")[1].startswith("✓ slip-3: right\n    With your `weight` the model gives")
    (tmp_path / "slip-3.py").write_text(EXERCISES["slip-3"].slips[0].code)
    assert EXERCISES["slip-3"].slips[0].said["de"] in " ".join(
        command("solve", "slip-3", "--language", "de")[1].split()
    )


def test_an_answer_that_hangs_is_a_try_and_what_was_right_before_is_kept(command, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "BOUNDS", replace(answers.BOUNDS, seconds=1))
    path = tmp_path / "mine.py"
    path.write_text("def dot_product(a, b):\n    return a @ b\n\n\ndef scores(query, key):\n    while True: pass\n")
    code, out, _ = command("write", "mine.py")
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "✓ dot-product: right", "1 of 14")
    assert "was given up after 1 s of work" in out
    assert "def scores" in command("solution", "scores")[1]


def test_a_watched_file_may_be_gone_for_a_moment(command, tmp_path, monkeypatch):
    """Editors put a new file in the place of the old one."""
    path, said = tmp_path / "mine.py", []
    path.write_text("def dot_product(a, b):\n    return a @ b\n")

    def sleep(seconds):
        said.append(seconds)
        if len(said) == 1:
            path.unlink()
        elif len(said) == 2:
            path.write_bytes(b"\xff")
        elif len(said) == 3:
            path.write_text("def dot_product(a, b):\n    return a @ b + 1\n")
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(learn.time, "sleep", sleep)
    out = command("write", "mine.py", "--watch")[1]
    assert out.count("✓ dot-product: right") == 1
    assert "mine.py: cannot be read" in out
    assert "expected 14, came 15" in out


@pytest.mark.slow
def test_the_block_one_wrote_is_trained(command, tmp_path):
    solutions = [each.solution for each in EXERCISES.of_kind("write")]
    (tmp_path / "mine.py").write_text("\n\n".join(solutions))
    code, out, _ = command("train", "mine.py")
    assert code == 0
    assert out.splitlines()[5].endswith("100% of the letters before are right")
    assert out.splitlines()[6] == "Your block has learned it."


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_puzzle_s_file_says_what_rasp_has_in_both_languages(command, tmp_path, language):
    command("solve", "first-token", "--language", language)
    command("solve", "mystery-1", "--language", language)
    for name in ("first-token", "mystery-1"):
        source = (tmp_path / f"{name}.py").read_text()
        [imported] = [line for line in source.splitlines() if line.startswith("from clearhead.rasp import ")]
        described = "".join(line for line in source.splitlines() if line.startswith("#"))
        for each in imported.removeprefix("from clearhead.rasp import ").split(", "):
            assert f"{each}(" in described or f"# {each}" in described or f", {each} " in described
        assert ("which keys" if language == "en" else "welche Keys") in source


def test_new_files_are_announced_in_german_too(command):
    assert command("write", "mine.py", "--language", "de")[1].startswith("mine.py hat jetzt 14 leere Funktionen.")
    assert command("solve", "sort", "--language", "de")[1].startswith("In sort.py steht, was gefragt ist.")


def test_one_try_is_singular(command, tmp_path):
    (tmp_path / "reverse.py").write_text(EXERCISES["reverse"].solution)
    command("solve", "reverse")
    assert "1 try\n" in command("list")[1]
    assert "1 Versuch\n" in command("list", "--language", "de")[1]
