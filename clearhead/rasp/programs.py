"""The RASP programs that come with Clearhead, each with its tokens, its length and a plain Python function.

>>> from clearhead.rasp import PROGRAMS
>>> PROGRAMS["histogram"].compile().run("hello"[:4].replace("h", "a").replace("e", "b").replace("l", "c"))
[1, 1, 2, 2]
"""

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import Any, final

from clearhead.attention.weighting import Weighting
from clearhead.calls import public
from clearhead.rasp.compiled_model import CompiledModel
from clearhead.rasp.compiler import AVERAGING, ProgramPlan, plan
from clearhead.rasp.language import (
    Selector,
    Sequence,
    aggregate,
    categorical,
    indices,
    map,
    numeric,
    past,
    select,
    selector_width,
    sequence_map,
    source_indices,
    source_tokens,
    tokens,
)

Text = Row[Any]
SHOWN_TOKENS = 4
"""How many tokens stand in for an example that does not fit."""


@final
@public
@dataclass(frozen=True, kw_only=True)
class Program:
    """A RASP program, what it takes to compile it, and a plain Python function to test it against.

    Attributes:
        name: Its name.
        about: What it computes.
        output: The program.
        vocabulary: Its tokens.
        length: Longest text.
        causal: Whether it becomes a decoder.
        source_vocabulary: Tokens of the source, if it reads one.
        example: A text.
        source_example: A source.

    >>> from clearhead import rasp
    >>> program = rasp.PROGRAMS["reverse"]
    >>> rasp.run(program.output, "abc") == program.plain("abc")
    True
    """

    name: str
    about: str
    output: Sequence
    vocabulary: tuple[Any, ...]
    plain: Callable[..., list[Any]]
    """The same in Python: from tokens (and a source) to values."""
    length: int = 10
    causal: bool = False
    source_vocabulary: tuple[Any, ...] | None = None
    fits: Callable[..., bool] = lambda *texts: True
    """Which inputs it is for."""
    example: Text = ()
    source_example: Text | None = None

    def plan(self, *, weighting: Weighting = AVERAGING, sharpness: float = 1.0) -> ProgramPlan:
        return plan(
            self.output,
            self.vocabulary,
            length=self.length,
            source_vocabulary=self.source_vocabulary,
            causal=self.causal,
            weighting=weighting,
            sharpness=sharpness,
        )

    def compile(self, *, weighting: Weighting = AVERAGING, sharpness: float = 1.0) -> CompiledModel:
        return self.plan(weighting=weighting, sharpness=sharpness).build()

    def usable_example(self) -> list[Any]:
        """Return the example if its tokens and length still fit the program; else the first few tokens."""
        tokens = {str(token) for token in self.vocabulary}
        fits = self.example and len(self.example) <= self.length and {str(token) for token in self.example} <= tokens
        return list(self.example) if fits else list(self.vocabulary[: min(SHOWN_TOKENS, self.length)])


def anywhere() -> Selector:
    return select(tokens, tokens, lambda key, query: True, name="all")


def is_token(token: Any) -> Selector:
    """Select the places of a token, for every query."""
    return select(tokens, tokens, lambda key, query: key == token, name=f"is {token}")


def same() -> Selector:
    return select(tokens, tokens, lambda key, query: key == query, name="same")


def before() -> Selector:
    return select(indices, indices, lambda key, query: key < query, name="before")


def at(positions: Sequence) -> Selector:
    """Select the key whose index is the query's value."""
    return select(indices, positions, lambda key, query: key == query, name="at")


def length() -> Sequence:
    return selector_width(anywhere(), name="length")


def reverse() -> Sequence:
    opposite = sequence_map(lambda n, i: n - 1 - i, length(), indices, name="opposite")
    return aggregate(at(opposite), tokens, name="reverse")


def shift(by: int = 1) -> Sequence:
    back = select(indices, indices, lambda key, query: key == query - by, name=f"{by} back")
    return aggregate(back, tokens, name=f"shifted by {by}")


def histogram() -> Sequence:
    return selector_width(same(), name="histogram")


def double_histogram() -> Sequence:
    """Count the different tokens that are as frequent as this one, itself included."""
    count = histogram()
    earlier = selector_width(same() & before(), name="earlier")
    first = map(lambda n: n == 0, earlier, name="first of its kind")
    alike = select(count, count, lambda key, query: key == query) & select(first, tokens, lambda key, query: key)
    return selector_width(alike, name="double histogram")


def ranked(keys: Sequence, smaller: Callable[[Any, Any], bool]) -> Sequence:
    """Return the place of each in order: how many are smaller, and how many are equal and earlier."""
    less = selector_width(select(keys, keys, smaller), name="smaller")
    tied = select(keys, keys, lambda key, query: not smaller(key, query) and not smaller(query, key))
    ahead = selector_width(tied & before(), name="equal and earlier")
    return sequence_map(lambda a, b: a + b, less, ahead, name="rank")


def arranged(rank: Sequence) -> Sequence:
    """Return the tokens in the order of their ranks."""
    of_rank = select(rank, indices, lambda key, query: key == query, name="of this rank")
    return aggregate(of_rank, tokens, name="in order")


def ascending(key: Any, query: Any) -> bool:
    return key < query


def sort() -> Sequence:
    return arranged(ranked(tokens, ascending))


def sort_unique() -> Sequence:
    return arranged(selector_width(select(tokens, tokens, ascending), name="smaller"))


def by_frequency() -> Sequence:
    return ranked(histogram(), lambda key, query: key > query)


def most_frequent() -> Sequence:
    first = select(by_frequency(), tokens, lambda key, query: key == 0, name="rank 0")
    return aggregate(first, tokens, name="most frequent")


def fraction_of_previous(token: Any) -> Sequence:
    is_token_here = map(lambda value: value == token, tokens, numeric=True, name=f"is {token}")
    return aggregate(past(), is_token_here, name=f"share of {token} so far")


def count(token: Any) -> Sequence:
    return selector_width(is_token(token), name=f"count of {token}")


def pair_balance(opening: str, closing: str) -> Sequence:
    return fraction_of_previous(opening) - fraction_of_previous(closing)


def balanced(opening: str, closing: str) -> Sequence:
    """Return whether one kind of bracket closes all that it opens, and never before."""
    opened = selector_width(past(is_token(opening)), name=f"{opening} so far")
    closed = selector_width(past(is_token(closing)), name=f"{closing} so far")
    depth = sequence_map(lambda a, b: a - b, opened, closed, name=f"depth of {opening}{closing}")
    below = selector_width(select(depth, tokens, lambda key, query: key < 0), name="times below 0")
    last = map(lambda n: n - 1, length(), name="last")
    final = aggregate(at(last), depth, name="depth at the end")
    return sequence_map(lambda a, b: a == 0 and b == 0, below, final, name=f"{opening}{closing} balanced")


def all_balanced(*pairs: str) -> Sequence:
    result = balanced(*pairs[0])
    for pair in pairs[1:]:
        result = sequence_map(lambda a, b: a and b, result, balanced(*pair), name="all balanced")
    return result


def pattern(text: str) -> Sequence:
    """Return whether the text up to here ends with the pattern."""
    result = map(lambda token: token == text[-1], tokens, name=f"is {text[-1]}")
    for by, letter in enumerate(reversed(text[:-1]), 1):
        back = select(indices, indices, lambda key, query, by=by: key == query - by)
        hits = aggregate(back, map(lambda token, letter=letter: token == letter, tokens, numeric=True))
        hit = map(lambda share: share > 0.5, hits, name=f"{letter} {by} back")
        result = sequence_map(lambda a, b: a and b, result, hit, name=f"ends with {text[-by - 1 :]}")
    return result


def majority() -> Sequence:
    share = aggregate(anywhere(), numeric(tokens), name="share of ones")
    return map(lambda value: int(value > 0.5), share, name="majority")


def copy() -> Sequence:
    same_position = select(source_indices, indices, lambda key, query: key == query, name="same place")
    return aggregate(same_position, source_tokens, name="copy")


def addition() -> Sequence:
    """Add two numbers of as many digits, `12+34`: the sum's digits at the first number's, what is carried at the sign.

    What comes to a column is decided by the nearest column to its right that is not 9: it is found by its count.
    """
    sign = aggregate(is_token("+"), indices, name="place of +")
    below = sequence_map(lambda i, p: i + p + 1 if i < p else None, indices, sign, name="place below")
    digit = map(lambda t: None if t == "+" else int(t), tokens, name="digit")
    total = sequence_map(lambda a, b: a + b, digit, aggregate(at(below), digit, name="digit below"), name="column")
    decides = map(lambda s: s != 9, total, name="not 9")
    deciding = select(decides, tokens, lambda key, query: key, name="deciding")
    from_here = selector_width(deciding & select(indices, indices, lambda k, q: k >= q), name="deciding from here")
    right = selector_width(deciding & select(indices, indices, lambda k, q: k > q), name="deciding to the right")
    every = selector_width(deciding, name="deciding in all")
    deciding_index = sequence_map(
        lambda pair, t: pair[1] if t == "+" else pair[0],
        sequence_map(lambda a, b: (a, b), right, every),
        tokens,
        name="asked",
    )
    number = sequence_map(lambda c, d: c if d else None, from_here, decides, name="number of this column")
    nearest = select(number, deciding_index, lambda key, query: key == query and query > 0, name="nearest deciding")
    carries = map(lambda s: s >= 10, total, numeric=True, name="carries")
    carried = categorical(aggregate(nearest, carries, name="carried"))
    column = sequence_map(lambda s, c: (s + int(c)) % 10, total, carried, name="digit of the sum")
    overflow = sequence_map(lambda t, c: int(c) if t == "+" else None, tokens, carried, name="overflow")
    # Only one of the two has a value at each place. As numbers they can be added, with 0 for none.
    parts = [map(lambda value: float(value) + 1, inner, numeric=True) for inner in (column, overflow)]
    return map(lambda value: None if value == 0 else round(value) - 1, parts[0] + parts[1], name="sum")


def plain_sort_by_frequency(text: Text) -> list[Any]:
    counts = Counter(text)
    return sorted(text, key=lambda token: -counts[token])


def plain_balance(text: Text) -> list[float]:
    return [(text[: i + 1].count("(") - text[: i + 1].count(")")) / (i + 1) for i in range(len(text))]


def plain_balanced(text: Text, *pairs: str) -> bool:
    for opening, closing in pairs:
        depth = 0
        for token in text:
            depth += (token == opening) - (token == closing)
            if depth < 0:
                return False
        if depth:
            return False
    return True


def plain_addition(text: Text) -> list[Any]:
    joined = "".join(text)
    first, second = joined.split("+")
    total = str(int(first) + int(second)).zfill(len(first) + 1)
    return [*(int(digit) for digit in total[1:]), int(total[0]), *[None] * len(second)]


def is_sum(text: Text) -> bool:
    parts = "".join(text).split("+")
    return len(parts) == 2 and len(parts[0]) == len(parts[1]) > 0


LETTERS = ("a", "b", "c")
ALL = (
    Program(
        name="length",
        about="how long the text is",
        output=length(),
        vocabulary=LETTERS,
        plain=lambda text: [len(text)] * len(text),
        example="abca",
    ),
    Program(
        name="reverse",
        about="the text from its end to its beginning",
        output=reverse(),
        vocabulary=LETTERS,
        plain=lambda text: list(reversed(text)),
        example="abbc",
    ),
    Program(
        name="shift",
        about="the token before",
        output=shift(),
        vocabulary=LETTERS,
        plain=lambda text: [None, *text[:-1]],
        causal=True,
        example="abca",
    ),
    Program(
        name="histogram",
        about="how often each token stands in the text",
        output=histogram(),
        vocabulary=LETTERS,
        plain=lambda text: [list(text).count(token) for token in text],
        example="abca",
    ),
    Program(
        name="double-histogram",
        about="how many different tokens are as frequent as this one",
        output=double_histogram(),
        vocabulary=LETTERS,
        plain=lambda text: [
            sum(list(text).count(other) == list(text).count(token) for other in set(text)) for token in text
        ],
        example="abca",
    ),
    Program(
        name="sort",
        about="the tokens in order, repeated ones as often as they are there",
        output=sort(),
        vocabulary=LETTERS,
        plain=sorted,
        example="cabba",
    ),
    Program(
        name="sort-unique",
        about="the tokens in order, for texts in which none is repeated",
        output=sort_unique(),
        vocabulary=("a", "b", "c", "d", "e", "f"),
        plain=sorted,
        length=6,
        fits=lambda text: len(set(text)) == len(text),
        example="dbca",
    ),
    Program(
        name="sort-by-frequency",
        about="the tokens by how often they stand in the text, the most frequent first",
        output=arranged(by_frequency()),
        vocabulary=LETTERS,
        plain=plain_sort_by_frequency,
        example="abcbb",
    ),
    Program(
        name="most-frequent",
        about="the most frequent token, of several the one that comes first",
        output=most_frequent(),
        vocabulary=LETTERS,
        plain=lambda text: plain_sort_by_frequency(text)[:1] * len(text),
        example="abcbb",
    ),
    Program(
        name="fraction-of-previous",
        about="which share of the text so far is the token x",
        output=fraction_of_previous("x"),
        vocabulary=("x", "y", "z"),
        plain=lambda text: [list(text[: i + 1]).count("x") / (i + 1) for i in range(len(text))],
        causal=True,
        example="xyxx",
    ),
    Program(
        name="count",
        about="how many a there are",
        output=count("a"),
        vocabulary=LETTERS,
        plain=lambda text: [list(text).count("a")] * len(text),
        example="abca",
    ),
    Program(
        name="pair-balance",
        about="the share of ( less the share of ) in the text so far",
        output=pair_balance("(", ")"),
        vocabulary=("(", ")", "x"),
        plain=lambda text: plain_balance("".join(text)),
        causal=True,
        example="(x))",
    ),
    Program(
        name="shuffle-dyck-2",
        about="whether () and {} are each balanced, in whatever order they mix",
        output=all_balanced("()", "{}"),
        vocabulary=("(", ")", "{", "}"),
        plain=lambda text: [plain_balanced(text, "()", "{}")] * len(text),
        length=8,
        example="({)}",
    ),
    Program(
        name="shuffle-dyck-3",
        about="whether (), {} and [] are each balanced",
        output=all_balanced("()", "{}", "[]"),
        vocabulary=("(", ")", "{", "}", "[", "]"),
        plain=lambda text: [plain_balanced(text, "()", "{}", "[]")] * len(text),
        length=8,
        example="({[)}]",
    ),
    Program(
        name="dyck-1",
        about="whether ( and ) are balanced",
        output=balanced("(", ")"),
        vocabulary=("(", ")"),
        plain=lambda text: [plain_balanced(text, "()")] * len(text),
        length=12,
        example="(()())",
    ),
    Program(
        name="pattern",
        about="whether the text up to here ends with abc",
        output=pattern("abc"),
        vocabulary=LETTERS,
        plain=lambda text: ["".join(text[: i + 1]).endswith("abc") for i in range(len(text))],
        causal=True,
        example="aabcb",
    ),
    Program(
        name="majority",
        about="1 if more than half of the tokens are 1, else 0",
        output=majority(),
        vocabulary=(0, 1),
        plain=lambda text: [int(2 * sum(text) > len(text))] * len(text),
        length=15,
        example=(1, 0, 1),
    ),
    Program(
        name="copy",
        about="what stands in the source, place by place, through cross-attention",
        output=copy(),
        vocabulary=("<go>", *LETTERS, "."),
        source_vocabulary=(*LETTERS, "."),
        plain=lambda text, source: [source[i] if i < len(source) else None for i in range(len(text))],
        length=8,
        causal=True,
        example=("<go>", "a", "b"),
        source_example=("a", "b", "."),
    ),
    Program(
        name="addition",
        about="long addition of two numbers of as many digits: the digits of the sum, and what is carried at the +",
        output=addition(),
        vocabulary=(*"0123456789", "+"),
        plain=plain_addition,
        length=9,
        fits=is_sum,
        example="275+948",
    ),
)
PROGRAMS: Mapping[str, Program] = {program.name: program for program in ALL}
"""Every program by name."""
