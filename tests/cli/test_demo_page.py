"""The demo's numbers: which are drawn, that none is both trained on and asked about, and their words."""

from collections import Counter
from pathlib import Path

import pytest
from num2words import num2words

from clearhead.cli.demo_page import BELOW, ROUND, draw, english, german, spoken_numbers, write_pairs
from clearhead.errors import OptionError
from clearhead.text.lines import Problems


@pytest.fixture(scope="module")
def numbers():
    return draw(1, apart=(313, 90_210, 999_999))


def with_digits(numbers, digits):
    return [number for number in numbers if len(str(number)) == digits]


def test_no_number_is_trained_on_and_asked_about(numbers):
    train, held_out = set(numbers.train), set(numbers.held_out)
    assert (len(numbers.train), len(numbers.held_out), len(held_out)) == (20_000, 1_000, 1_000)
    assert not train & (held_out | {313, 90_210, 999_999})
    assert 0 <= min(train | held_out) <= max(train | held_out) < BELOW


def test_as_many_numbers_of_each_length_are_held_out_whatever_is_trained_on(numbers):
    assert draw(1, train=50, apart=(313, 90_210, 999_999)).held_out == numbers.held_out
    assert [len(with_digits(numbers.held_out, digits)) for digits in range(1, 7)] == [0, 0, 250, 250, 250, 250]
    halves = [
        sum(number < 5 * 10 ** (digits - 1) for number in with_digits(numbers.held_out, digits)) for digits in (5, 6)
    ]
    assert all(80 < below < 145 for below in halves)  # four ninths of 250 are 111


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_people_type_first_is_all_learned_and_often(seed):
    """An earlier demo had each number below ten once in 20,000 lines, and answered *vier* with 404."""
    train = Counter(draw(seed).train)
    assert min(train[number] for number in range(10)) >= 100
    assert min(train[number] for number in range(10, 100)) >= 17
    assert min(train[number] for number in ROUND) >= 1
    assert set(range(100, 10_000, 100)) | set(range(1_000, BELOW, 1_000)) == set(ROUND)
    for digits, least in ((3, 2_000), (4, 2_000), (5, 3_400), (6, 8_000)):
        assert sum(count for number, count in train.items() if len(str(number)) == digits) >= least


def test_the_same_seed_draws_the_same_and_another_others():
    assert draw(3, train=100, held_out=10) == draw(3, train=100, held_out=10)
    one, other = draw(3, train=100, held_out=10), draw(4, train=100, held_out=10)
    assert one.train != other.train
    assert one.held_out != other.held_out


def test_the_order_says_nothing_of_the_size(numbers):
    middle = len(numbers.train) // 2
    first, last = (sum(n < 1_000 for n in half) for half in (numbers.train[:middle], numbers.train[middle:]))
    assert min(first, last) > 2_000


@pytest.mark.parametrize("sizes", [{"train": 0}, {"held_out": 0}, {"train": 500_000}, {"held_out": 1_601}])
def test_what_cannot_be_drawn_is_told(sizes):
    with pytest.raises(
        OptionError, match="draw from 1 to 100,000 numbers to train on and from 1 to 1,600 to hold out; came"
    ):
        draw(1, **sizes)


def test_the_files_hold_the_words_line_by_line(tmp_path):
    source = write_pairs([0, 24, 999_999], tmp_path / "files", "train")
    assert (tmp_path / "files" / "train.de").read_text(encoding="utf-8").splitlines() == [
        num2words(n, lang="de") for n in (0, 24, 999_999)
    ]
    problems = Problems()
    assert [record.fields for record in source.records(problems)] == [(german(n), english(n)) for n in (0, 24, 999_999)]
    assert (german(0), english(0)) == ("null", "zero")


def test_what_people_say_for_a_hundred_and_a_thousand_is_learned(tmp_path):
    """`num2words` has *einhundert*: a demo that had read nothing else answered *hundert* with "ninety"."""
    numbers = draw(1, train=3_000, held_out=100)
    spoken = spoken_numbers(numbers)
    corpus = write_pairs(numbers.train, tmp_path, "train", spoken=spoken)
    lines = [Path(path).read_text(encoding="utf-8").splitlines() for path in (*corpus.source, *corpus.target)]
    pairs = Counter(zip(*lines, strict=True))
    assert pairs["hundert", "one hundred"] >= 20 <= pairs["tausend", "one thousand"]
    assert not {english(number) for number in numbers.held_out} & set(lines[1])
    assert all(german(number).startswith(("einhundert", "eintausend")) for number in spoken)
