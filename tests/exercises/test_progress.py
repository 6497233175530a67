"""Progress: what counts as a try, and lines that are handed in and read back."""

import pytest

from clearhead.errors import DataError
from clearhead.exercises.progress import (
    LearnProgress,
    checksum_of,
    hand_in,
    read_hand_in,
    read_progress,
    write_progress,
)
from clearhead.exercises.verdict import Verdict


def verdict(state):
    return Verdict(name="scale", state=state)


def test_only_another_answer_is_another_try():
    progress = LearnProgress().tried(verdict("empty"), "...", 10).tried(verdict("not yet"), "a", 20)
    assert progress.records["scale"].tries == 1
    again = progress.tried(verdict("not yet"), "a", 30)
    assert again == progress
    solved = again.tried(verdict("right"), "b", 130)
    record = solved.records["scale"]
    assert (record.tries, record.begun, record.solved) == (2, 10, 130)
    assert solved.tried(verdict("not yet"), "c", 200).records["scale"].solved == 130
    assert solved.minutes == 2


def test_progress_is_read_back(tmp_path):
    progress = LearnProgress().tried(verdict("right"), "a", 60).hinted("sort")
    write_progress(tmp_path, progress)
    assert read_progress(tmp_path) == progress
    assert read_progress(tmp_path / "nowhere") == LearnProgress()


@pytest.mark.parametrize(
    "content", ['{"scale": 3}', '{"scale": {"tries": "x"}}', "[" * 9999, '{"scale": {"solved": []}}']
)
def test_a_file_that_is_no_progress_is_not_written_over(tmp_path, content):
    (tmp_path / "learn.json").write_text(content)
    with pytest.raises(DataError, match=r"learn\.json: is no progress as Clearhead writes it; move it away"):
        read_progress(tmp_path)


def test_a_line_is_read_back_and_a_slip_is_found():
    progress = LearnProgress().tried(verdict("right"), "a", 60).hinted("sort")
    handed = hand_in(progress, "Ada;  Lovelace")
    line = str(handed)
    assert read_hand_in(f"  {line}\n") == handed
    assert (handed.name, handed.solved, handed.tries, handed.hints) == ("Ada, Lovelace", ("scale",), 1, 1)
    for i in range(len(line)):
        with pytest.raises(DataError):
            read_hand_in(line[:i] + line[i + 1 :])


@pytest.mark.parametrize("tries", ["x", "-1", "9" * 5000, "²"])
def test_a_line_that_fits_its_checksum_and_holds_no_numbers_is_refused(tries):
    facts = f"clearhead-2; Ann; exercises; scale; sort; {tries}; 0; 1"
    with pytest.raises(DataError, match="expected a line as `clearhead learn hand-in` or a lesson prints it"):
        read_hand_in(f"{facts}; {checksum_of(facts)}")


def test_the_line_of_a_page_is_read():
    """As web/src/learn/record.svelte.test.ts expects it to be written."""
    handed = read_hand_in("clearhead-2; Zoë, 9b; Attention; tokens own-3; softmax; 4; 1; 12; 257f298f")
    assert (handed.name, handed.lesson, handed.solved, handed.left) == (
        "Zoë, 9b",
        "Attention",
        ("tokens", "own-3"),
        ("softmax",),
    )
