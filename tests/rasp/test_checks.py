"""What a program cannot be: each is refused, and told why. MAJORITY and Dyck-1 need ties that are averaged."""

import itertools
import math

import pytest

from clearhead.attention.weighting import Argmax, Kernelized, Sigmoid
from clearhead.errors import OptionError, ProgramError
from clearhead.rasp import (
    PROGRAMS,
    aggregate,
    categorical,
    compile,
    compiler,
    constant,
    indices,
    numeric,
    past,
    plan,
    run,
    select,
    selector_width,
    sequence_map,
    source_indices,
    source_tokens,
    tokens,
)
from clearhead.rasp import map as mapped

pytestmark = pytest.mark.plain

everywhere = select(tokens, tokens, lambda key, query: True)
same_place = select(indices, indices, lambda key, query: key == query)
across = select(source_indices, indices, lambda key, query: key == query)
ONE_WINNER = Argmax(ties="first")


def pairs_of(sequence):
    return sequence_map(lambda a, b: (a, b), sequence, mapped(lambda value: value, sequence))


def planned(program, vocabulary="ab", **options):
    return lambda: plan(program, vocabulary, **{"length": 4, **options})


WRITTEN = {
    "queries of the source choose keys of the target": (
        lambda: select(indices, source_indices, lambda key, query: True),
        "the source is read before the target is there.*turn it round",
    ),
    "a map of two texts": (
        lambda: sequence_map(lambda a, b: a, tokens, source_tokens),
        "tokens runs along the target and source tokens along the source.*select and an aggregate",
    ),
    "a sum of two texts": (lambda: numeric(tokens) + numeric(source_tokens), "a sum: tokens runs along the target"),
    "a product of two texts": (lambda: tokens * source_tokens, "runs along the target and source tokens"),
    "values that are not the keys'": (
        lambda: aggregate(across, tokens),
        r"the keys are of the source and the values \(tokens\) of the target",
    ),
    "selectors of different texts joined": (lambda: everywhere & across, "both choose from one text"),
    "the past of another text": (lambda: past(across), "both choose from one text"),
    "several joined, turned round": (
        lambda: ~(everywhere & same_place),
        "`~` turns one select round.*no sum of scores",
    ),
}
FAILS = mapped(lambda value: 1 / (value - 2), tokens)
PLANNED = {
    "a function that fails": (planned(FAILS, (1, 2)), r"fails for 2, which can come to it \(ZeroDivisionError"),
    "a function of two that fails": (
        planned(sequence_map(lambda a, b: a / b, tokens, indices), (1, 2)),
        r"fails for \d, 0, which can come to it",
    ),
    "a predicate that fails": (
        planned(selector_width(select(tokens, indices, lambda key, query: key < query))),
        r"predicate fails for the key '\w' and the query \d.*TypeError",
    ),
    "numbers that are none": (planned(numeric(tokens)), "fails for '[ab]', which can come to it .ValueError"),
    "a numeric map of words": (
        planned(mapped(lambda value: value, tokens, numeric=True)),
        "a numeric sequence holds numbers, and there is '[ab]'",
    ),
    "a number that is not finite": (
        planned(mapped(lambda value: math.inf, tokens, numeric=True)),
        "holds numbers, and there is inf",
    ),
    "a numeric constant that is none": (planned(constant("x", numeric=True)), "x: a numeric sequence holds numbers"),
    "a category that cannot be hashed": (
        planned(mapped(lambda value: [value], tokens)),
        "something that can be hashed",
    ),
    "None everywhere": (planned(mapped(lambda value: None, tokens)), "is None wherever it stands"),
    "too many values": (
        planned(mapped(lambda pair: pair, pairs_of(tokens)), range(70)),
        "may have 4,900 values, and 4,096 are the most",
    ),
    "too many pairs": (
        planned(sequence_map(lambda a, b: 0, pairs_of(tokens), pairs_of(tokens)), range(30)),
        "810,000 combinations of values",
    ),
    "too many means": (
        planned(aggregate(everywhere, mapped(lambda value: value**4, tokens, numeric=True)), range(20), length=20),
        "a mean of numbers that may come to more than 4,096 values",
    ),
    "numbers too close": (
        planned(categorical(mapped(lambda value: 1 + value / 1e7, tokens, numeric=True)), (0, 1)),
        "too close to be told apart in float32",
    ),
    "looking ahead": (
        planned(aggregate(select(indices, indices, lambda key, query: key == query + 1), tokens), causal=True),
        "looks ahead: the query at place 0 may choose the key at place 1",
    ),
    "looking ahead to count": (planned(selector_width(everywhere), causal=True), r"looks ahead.*`past\(selector\)`"),
    "looking ahead in a decoder beside a source": (
        planned(
            sequence_map(lambda a, b: a, tokens, selector_width(everywhere)) + aggregate(across, source_tokens),
            source_vocabulary="ab",
        ),
        "looks ahead",
    ),
    "a mean by an argmax of one key": (
        planned(aggregate(everywhere, numeric(tokens)), (0, 1), weighting=ONE_WINNER),
        "takes the mean of what it chooses, and at place 0 it may choose places 0 and 1 together: an argmax that "
        "picks one key cannot average",
    ),
    "a count by an argmax of one key": (
        planned(selector_width(same_place), weighting=ONE_WINNER),
        "counts what it chooses .at place 0 it may choose place 0.*an argmax that picks one key cannot share",
    ),
    "sigmoid": (planned(tokens, weighting=Sigmoid()), "weighting of your own; Sigmoid"),
    "linear attention": (planned(tokens, weighting=Kernelized()), "weighting of your own; Kernelized"),
    "no sharpness": (planned(tokens, sharpness=0.0), "more than 0 was expected; came 0.0"),
    "endless sharpness": (planned(tokens, sharpness=math.inf), "more than 0 was expected; came inf"),
    "no length": (planned(tokens, length=0), "1 or more; came 0"),
    "no tokens": (planned(tokens, ""), "vocabulary is the tokens a text may have; there are none"),
    "None as a token": (planned(tokens, ("a", None)), "None is no token"),
    "the model's own token": (planned(tokens, ("a", "<s>")), "<s> is the model's own token"),
    "tokens written alike": (planned(tokens, (1, "1")), "1 and '1' are written alike"),
    "source tokens written alike": (
        planned(aggregate(across, source_tokens), source_vocabulary=(True, "True")),
        "source_vocabulary: True and 'True' are written alike",
    ),
    "answers written alike": (
        planned(mapped(lambda value: 1 if value == "a" else "1", tokens)),
        "the values of map.tokens.: .* are written alike",
    ),
    "an answer along the source": (planned(source_tokens, source_vocabulary="ab"), "runs along the source"),
    "a source without a vocabulary": (planned(aggregate(across, source_tokens)), "give its tokens, source_vocabulary"),
}


@pytest.mark.parametrize(("make", "why"), [pytest.param(*case, id=name) for name, case in WRITTEN.items()])
def test_it_cannot_be_written(make, why):
    with pytest.raises(ProgramError, match=why):
        make()


@pytest.mark.parametrize(("make", "why"), [pytest.param(*case, id=name) for name, case in PLANNED.items()])
def test_it_cannot_be_compiled(make, why):
    with pytest.raises(ProgramError, match=why):
        make()


def test_categories_that_differ_have_no_mean():
    with pytest.raises(ProgramError, match=r"several keys are chosen whose values differ \(a, b\).*there is no mean"):
        run(aggregate(everywhere, tokens), "ab")
    assert run(aggregate(everywhere, tokens), "aa") == ["a", "a"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ax", "'x' is not in the vocabulary"),
        (["3"], "'3' is not in the vocabulary"),  # an answer, and no token
        (["<s>"], "'<s>' is not in the vocabulary"),
        ("ababa", "1 to 4 tokens was expected; this one has 5"),
        ("", "1 to 4 tokens was expected; this one has 0"),
    ],
)
def test_a_text_that_it_is_not_for(text, why):
    crafted = compile(selector_width(everywhere), "ab", length=4)
    with pytest.raises(OptionError, match=why):
        crafted.run(text)


def test_a_source_that_is_missing_or_too_much():
    copies = compile(aggregate(across, source_tokens), "x", length=4, source_vocabulary="ab")
    with pytest.raises(OptionError, match="reads a source: give both"):
        copies.run("xx")
    with pytest.raises(OptionError, match="'x' is not in the vocabulary"):
        copies.run("xx", "xx")
    with pytest.raises(OptionError, match="reads no source"):
        compile(tokens, "ab", length=4).run("ab", "ab")


def test_a_batch_of_different_lengths():
    with pytest.raises(OptionError, match="texts of one length"):
        compile(tokens, "ab", length=4).run_batch(["a", "ab"])


def test_a_causal_reverse_is_refused():
    """Tracr compiles it, and it is wrong."""
    reverse = PROGRAMS["reverse"]
    with pytest.raises(ProgramError, match="looks ahead: the query at place 0 may choose the key at place 1"):
        compile(reverse.output, reverse.vocabulary, length=5, causal=True)


def test_ids_that_leave_out_a_token():
    made = plan(selector_width(everywhere), "ab", length=4)
    ids = {symbol: number for symbol, number in made.default_ids().items() if symbol != "b"}
    with pytest.raises(ProgramError, match="every token and answer needs one, and there is none for 'b'"):
        made.build(ids)


@pytest.mark.parametrize("name", ["majority", "dyck-1"])
def test_ties_averaged_it_is_right_on_every_input(name):
    program = PROGRAMS[name]
    crafted = program.compile()
    for length in range(1, 8):
        texts = list(itertools.product(program.vocabulary, repeat=length))
        assert crafted.run_batch(texts) == [program.plain(text) for text in texts]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "majority",
            "share of ones takes the mean of what it chooses.*places 0 and 1 together: an argmax that "
            "picks one key cannot average",
        ),
        ("dyck-1", "counts what it chooses.*picks one key cannot share"),
    ],
)
@pytest.mark.parametrize("ties", ["first", "last"])
def test_with_one_winner_it_is_refused(name, why, ties):
    with pytest.raises(ProgramError, match=why):
        PROGRAMS[name].compile(weighting=Argmax(ties=ties))


@pytest.mark.parametrize(("name", "text"), [("majority", (1, 0, 0)), ("dyck-1", "()")])
def test_with_one_winner_it_would_be_wrong(name, text, monkeypatch):
    program = PROGRAMS[name]
    monkeypatch.setattr(compiler, "check_selectors", lambda *given, **options: None)
    crafted = program.compile(weighting=ONE_WINNER)
    assert crafted.run(text) != program.plain(text)
    assert program.compile().run(text) == program.plain(text)


def test_one_winner_may_choose_one():
    shift = PROGRAMS["shift"]
    crafted = shift.compile(weighting=ONE_WINNER)
    for text in itertools.product(shift.vocabulary, repeat=4):
        assert crafted.run(text) == shift.plain(text)
