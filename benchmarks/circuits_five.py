"""Five RASP programs by somebody who had not seen how circuits are found.

    clearhead circuits bench --program benchmarks/circuits_five.py --list-edges --axes "argmax,softmax 10"

The results page for circuits has a section about them.
"""

from clearhead.rasp import Program, aggregate, indices, map, select, selector_width, sequence_map, tokens


def at(place, name):
    return select(indices, place, lambda key, query: key == query, name=name)


def vote():
    """Whether the text begins with a, found in three ways, of which two must agree: a redundant path."""
    is_a = map(lambda token: token == "a", tokens, numeric=True, name="is a")
    first = aggregate(select(indices, tokens, lambda key, query: key == 0, name="place 0"), is_a, name="way 1")
    least = aggregate(select(indices, tokens, lambda key, query: not key > 0, name="not past 0"), is_a, name="way 2")
    before = aggregate(at(map(lambda place: place - 1, indices, name="one back"), "one back"), is_a, name="before")
    detour = aggregate(select(indices, tokens, lambda key, query: key == 1, name="place 1"), before, name="way 3")
    return map(lambda votes: votes is not None and votes > 1.5, first + least + detour, name="vote")


def as_many():
    """Whether there are as many a as b: two counts, compared."""
    a = selector_width(select(tokens, tokens, lambda key, query: key == "a", name="all a"), name="count of a")
    b = selector_width(select(tokens, tokens, lambda key, query: key == "b", name="all b"), name="count of b")
    return sequence_map(lambda one, other: one == other, a, b, name="as many")


def two_hops():
    """The token at the place that the token at my token's place names: one attention steers the next."""
    one = aggregate(at(tokens, "hop 1"), tokens, name="one hop")
    return aggregate(at(one, "hop 2"), tokens, name="two hops")


def sort_pairs():
    """Places 0 and 1, 2 and 3, … each sorted (a last one alone gives None): places choose partner and answer."""
    partner = aggregate(at(map(lambda i: i + 1 - 2 * (i % 2), indices, name="partner's place"), "partner"), tokens)
    both = sequence_map(lambda mine, other: "".join(sorted(mine + other)), tokens, partner, name="both")
    return sequence_map(lambda two, i: two[i % 2], both, indices, name="sorted pairs")


def gated_count():
    """How many b there are if the text begins with c, else 0; a histogram is read as well, and never matters."""
    first = aggregate(select(indices, tokens, lambda key, query: key == 0, name="place 0"), tokens, name="first")
    b = selector_width(select(tokens, tokens, lambda key, query: key == "b", name="all b"), name="count of b")
    gated = sequence_map(lambda start, n: n if start == "c" else 0, first, b, name="gated")
    spare = selector_width(select(tokens, tokens, lambda key, query: key == query, name="same"), name="histogram")
    return sequence_map(lambda n, unused: n, gated, spare, name="gated count")


def hop(text, place):
    return text[place] if place is not None and place < len(text) else None


def plain_two_hops(text):
    return [hop(text, hop(text, token)) for token in text]


def plain_sort_pairs(text):
    pairs = [sorted(text[i : i + 2]) for i in range(0, len(text) - 1, 2)]
    return [token for pair in pairs for token in pair] + [None] * (len(text) % 2)


def plain_gated_count(text):
    return [list(text).count("b") if text[0] == "c" else 0] * len(text)


VOTE = Program(
    name="vote",
    about="whether the text begins with a, by two of three ways",
    output=vote(),
    vocabulary=tuple("abc"),
    plain=lambda text: [text[0] == "a"] * len(text),
    length=4,
    example="abca",
)
AS_MANY = Program(
    name="as-many",
    about="whether there are as many a as b",
    output=as_many(),
    vocabulary=tuple("abc"),
    plain=lambda text: [list(text).count("a") == list(text).count("b")] * len(text),
    length=4,
    example="abca",
)
TWO_HOPS = Program(
    name="two-hops",
    about="the token at the place that the token at my token's place names",
    output=two_hops(),
    vocabulary=(0, 1, 2, 3),
    plain=plain_two_hops,
    length=4,
    example=(1, 2, 3, 0),
)
SORT_PAIRS = Program(
    name="sort-pairs",
    about="neighbours 0 and 1, 2 and 3, … sorted",
    output=sort_pairs(),
    vocabulary=tuple("abc"),
    plain=plain_sort_pairs,
    length=4,
    example="bacb",
)
GATED_COUNT = Program(
    name="gated-count",
    about="how many b there are if the text begins with c, else 0",
    output=gated_count(),
    vocabulary=tuple("abc"),
    plain=plain_gated_count,
    length=4,
    example="cbab",
)
