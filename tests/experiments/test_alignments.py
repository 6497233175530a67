"""Alignments from cross-attention: what the weights of a trace say, by tokens and by words, in Moses format."""

import pytest

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.experiments.tracing import Alignment, align, word_matrix
from clearhead.text.tokenizer import Span
from tests.training import small_runs
from tests.training.small_runs import trained

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(small_runs.translating, tmp_path_factory)


SOURCE, TARGET = "zwei null drei", "20 3"


def weights_of(run, layer, head):
    """The weights of the target's tokens, of the rows that predict them, over the source's; and both texts' tokens."""
    trace = ch.trace(run, SOURCE, TARGET)
    heads = [
        trace.decoder[layer].cross.head[i].weight for i in range(run.model.spec.decoder.blocks[0].attention.heads.count)
    ]
    weight = sum(heads) / len(heads) if head is None else heads[head]
    read, written = (run.task.tokenizers[name].spans(text) for name, text in (("source", SOURCE), ("target", TARGET)))
    keys = trace.sides["encoder"].ids
    first = next(i for i in range(len(keys)) if keys[i : i + len(read)] == [span.id for span in read])
    rows = len(trace.sides["decoder"].ids) - len(written) - 1
    return weight[rows : rows + len(written), first : first + len(read)].tolist(), read, written


@pytest.mark.parametrize("head", [0, 1, None])
def test_tokens_are_aligned_where_the_weights_of_a_trace_are_largest(run, head):
    weight, read, _ = weights_of(run, 0, head)
    expected = [(max(range(len(read)), key=row.__getitem__), target) for target, row in enumerate(weight)]
    assert align(run, SOURCE, TARGET, layer=0, head=head, by="tokens") == Alignment(tuple(expected))


def words_of(text, spans):
    starts = [i for i, sign in enumerate(text) if sign != " " and (i == 0 or text[i - 1] == " ")]
    inside = [next((i for i in range(span.start, span.stop) if text[i] != " "), None) for span in spans]
    return [None if at is None else sum(start <= at for start in starts) - 1 for at in inside]


@pytest.mark.parametrize("head", [1, None])
def test_words_are_aligned_by_the_sums_and_means_of_their_tokens(run, head):
    weight, read, written = weights_of(run, 0, head)
    source, target = words_of(SOURCE, read), words_of(TARGET, written)
    expected = []
    for word in range(2):
        sums = [0.0] * 3
        for row, of in zip(weight, target, strict=True):
            for share, key in zip(row, source, strict=True):
                if of == word and key is not None:
                    sums[key] += share
        expected.append((sums.index(max(sums)), word))
    assert align(run, SOURCE, TARGET, head=head) == Alignment(tuple(expected))
    assert str(Alignment(tuple(expected))) == " ".join(f"{a}-{b}" for a, b in expected)


def test_a_token_belongs_to_the_first_word_it_has_characters_of():
    spans = [Span(0, "a", 0, 1, 0), Span(1, " ", 1, 2, 0), Span(2, " b", 1, 3, 0), Span(3, "b c", 2, 5, 0)]
    assert word_matrix("a b c", spans).tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_the_target_is_the_translation_where_none_is_given_and_long_texts_are_cut(run):
    assert align(run, SOURCE) == align(run, SOURCE, run.translate([SOURCE])[0])
    assert align(run, "") == align(run, SOURCE, "") == Alignment(())
    assert align(run, "eins " * 60, "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 9}, "layer: there are 1, counted from 0; came 9"),
        ({"head": -1}, "head: there are 2, counted from 0; came -1"),
        ({"by": "lines"}, "by: alignments are of words or tokens; came 'lines'"),
    ],
)
def test_what_there_is_not_is_told(run, options, message):
    with pytest.raises(OptionError, match=message):
        align(run, SOURCE, TARGET, **options)
