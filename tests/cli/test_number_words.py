"""The demo's numbers: which are drawn, that none is both trained on and asked about, and their words."""

import pytest
from num2words import num2words

from clearhead.cli.number_words import BELOW, draw, english, german, write_pairs
from clearhead.errors import OptionError
from clearhead.text.problems import Problems


@pytest.fixture(scope="module")
def numbers():
    return draw(1, apart=(24, 67_000, 999_999))


def test_no_number_is_trained_on_and_asked_about(numbers):
    train, held_out = set(numbers.train), set(numbers.held_out)
    assert (len(numbers.train), len(numbers.held_out)) == (len(train), len(held_out)) == (20_000, 1_000)
    assert not train & (held_out | {24, 67_000, 999_999})
    assert 0 <= min(train | held_out) <= max(train | held_out) < BELOW


def test_the_held_out_numbers_are_drawn_evenly_whatever_is_trained_on(numbers):
    assert draw(1, train=50).held_out == numbers.held_out
    tenths = [sum(n * 10 // BELOW == tenth for n in numbers.held_out) for tenth in range(10)]
    assert min(tenths) > 70
    assert max(tenths) < 130


def test_small_and_round_numbers_are_well_represented(numbers):
    apart = {*numbers.held_out, 24}
    assert set(range(1_000)) - set(numbers.train) == apart & set(range(1_000))
    for low, high, least in ((1_000, 10_000, 1_000), (10_000, 100_000, 3_000), (100_000, BELOW, 14_000)):
        assert sum(low <= n < high for n in numbers.train) >= least
    assert sum(n % 1_000 == 0 for n in numbers.train) >= 600


def test_the_same_seed_draws_the_same_and_another_others():
    assert draw(3, train=100, held_out=10) == draw(3, train=100, held_out=10)
    one, other = draw(3, train=100, held_out=10), draw(4, train=100, held_out=10)
    assert one.train != other.train
    assert one.held_out != other.held_out


def test_the_order_says_nothing_of_the_size(numbers):
    middle = len(numbers.train) // 2
    first, last = (sum(n < 1_000 for n in half) for half in (numbers.train[:middle], numbers.train[middle:]))
    assert min(first, last) > 400


@pytest.mark.parametrize("sizes", [{"train": 0}, {"held_out": 0}, {"train": 500_000}])
def test_what_cannot_be_drawn_is_told(sizes):
    with pytest.raises(OptionError, match="draw from 1 to 100,000 numbers of each kind; came"):
        draw(1, **sizes)


def test_the_files_hold_the_words_line_by_line(tmp_path):
    source = write_pairs([0, 24, 999_999], tmp_path / "files", "train")
    assert (tmp_path / "files" / "train.de").read_text(encoding="utf-8").splitlines() == [
        num2words(n, lang="de") for n in (0, 24, 999_999)
    ]
    problems = Problems()
    assert [record.fields for record in source.records(problems)] == [(german(n), english(n)) for n in (0, 24, 999_999)]
    assert (german(0), english(0)) == ("null", "zero")
