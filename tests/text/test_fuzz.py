"""Random bytes as every kind of file, through all of `prepare`: a clear error, or text that can be trained on."""

import gzip

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from clearhead.text.preparing import Tokenizing
from tests.covering import share_of
from tests.text.corpora import KINDS, Case, prepare_case

BROKEN = [b"\0", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\r", b" ", b"a", b"<s>", b"</s>", b"<mask>"]
ROWS = [b"a\tb\n", b"a,b\n", b"\t", b",", b'"', b'"",""\n', b"{", b'"a":', b'"\\ud800"', b"NaN", b"null", b"\x1f\x8b"]
NOISE = st.one_of(st.sampled_from(BROKEN + ROWS), st.binary(max_size=6))


@st.composite
def cases(draw, kind):
    """Lines that are right with noise among them, or noise alone."""
    lines = st.lists(st.sampled_from(kind.good), min_size=1, max_size=40)
    first = draw(lines)
    second = draw(st.permutations(first) | lines)
    for file in (first, second):
        for noise in draw(st.lists(NOISE, max_size=3)):
            file.insert(draw(st.integers(0, len(file))), noise)
    right = tuple(kind.head + b"".join(file) for file in (first, second))
    files = draw(st.just(right) | st.tuples(*(st.lists(NOISE, max_size=30).map(b"".join) for _ in range(2))))
    names = st.sampled_from(["bpe", "metaspace", "unigram", "word", "char", "byte"])
    tokenizing = draw(st.builds(Tokenizing, kind=names, lower=st.booleans(), shared=st.booleans()))
    return Case(files, tokenizing, draw(st.booleans()), draw(st.booleans()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples: what was made of other bytes lies under another key."""
    return tmp_path_factory.mktemp("fuzz")


def check(folder, kind, case):
    """Prepare the bytes as this kind of corpus, and tell hypothesis what came of it."""
    event(f"{kind.task}: {prepare_case(folder, kind, case)}")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@given(draw=st.data())
@settings(max_examples=10)
def test_any_bytes_give_a_clear_error_or_batches(folder, kind, draw):
    check(folder, kind, draw.draw(cases(kind)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@given(draw=st.data(), packed=st.booleans(), cut=st.integers(0, 9))
@settings(max_examples=share_of(25))
def test_packed_and_cut_short_too(folder, kind, draw, packed, cut):
    """The same, packed with gzip and cut short; `make attack` tries thousands."""
    case = draw.draw(cases(kind))
    if packed:
        case = case._replace(files=tuple(gzip.compress(content)[: -cut or None] for content in case.files))
    check(folder, kind, case)
