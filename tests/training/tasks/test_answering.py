"""What answers: lines and pairs of text, and passages as jobs, the same for Run, command line and server."""

import inspect
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.decoding import Beam, Greedy, Rules, Sample, generate, score
from clearhead.errors import ClearheadError, OptionError
from clearhead.model import presets
from clearhead.model.presets import Size
from clearhead.text.kinds import KINDS
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks import Classify, Framing, answering
from clearhead.training.tasks.answering import (
    Decoding,
    WritingOptions,
    check_list,
    check_max_new,
    check_text,
    check_text_or_pair,
    continued,
    one_line,
    one_or_several,
    split_pair,
)
from clearhead.training.tasks.generate import Detokenizer, window
from clearhead.training.tasks.texts import share_room
from clearhead.training.tasks.translate import reach
from tests.once import MadeWhenAsked
from tests.training.small_runs import CONTEXT, pairs
from tests.training.tasks.echo import Echo, echo_task

MODEL = presets.gpt2("tiny", vocabulary=9).build()
"""A model that is not asked."""


def test_a_blank_text_has_a_blank_answer_and_is_not_asked():
    class Strict(Echo):
        def answer(self, model, texts):
            assert all(text.strip() for text in texts)
            return [{"output": text, "more": 1} for text in texts]

    task = Strict(tokenizers=echo_task().tokenizers, context=8)
    assert task.answer_items(MODEL, ["a", " ", "b"]) == [
        {"output": "a", "more": 1},
        {"output": ""},
        {"output": "b", "more": 1},
    ]
    assert task.answer_items(MODEL, []) == task.answer_items(MODEL, [""])[1:] == []


def test_pairs_are_refused_by_name():
    with pytest.raises(OptionError, match="to echo takes single texts, and no pairs"):
        echo_task().answer_items(MODEL, [("a", "b")])
    with pytest.raises(OptionError, match="some of the texts are pairs and some are not"):
        echo_task().answer_items(MODEL, ["a", ("a", "b")])


def test_what_writes_nothing_has_nothing_to_decode():
    with pytest.raises(OptionError, match="to echo writes nothing, so there is nothing to decode"):
        echo_task().passage([1], Greedy(), WritingOptions())


def test_what_decoding_begins_with_is_all_that_a_writing_task_must_say():
    class Writes(Echo):
        target = "writes"

        def decoding(self, ids, *, max_new, usual):
            rules = Rules(max_new=max_new or usual, end=(3,))
            return Decoding(source=ids["encoder"], prefix=[[2]], rules=rules, writes=self.tokenizer, before=[])

    task = Writes(tokenizers=echo_task().tokenizers, context=8)
    passage = task.passage([5] * 9, Greedy(), WritingOptions(rules=Rules(max_new=4), candidates=2))
    assert passage.first.inputs == (task.tokenizer.start, *[5] * 7)
    assert (passage.first.prefix, passage.first.rules.max_new, passage.first.candidates) == ((2,), 4, 2)
    assert (passage.unread, passage.following([1])) == (2, None)
    assert task.written_inputs(passage, [7, 3]).ids == {"encoder": list(passage.first.inputs), "decoder": [2, 7]}


pytestmark = pytest.mark.slow


def decode(run, job):
    """The best hypothesis of one job."""
    prefix = None if job.prefix is None else [list(job.prefix)]
    [[best, *_]] = generate(run.model, [job.inputs], job.method, rules=job.rules, prefix=prefix)
    return list(best.tokens)


@pytest.mark.parametrize("method", [Greedy(), Sample(temperature=0.8, seeds=5)])
def test_a_continuation_past_the_context_is_several_jobs(stretch, method):
    """Of the second text alone too: what is drawn for it does not depend on the one beside it."""
    texts, new = ["the red", "an old cow"], 2 * stretch.task.context + 3
    expected = stretch.generate(texts, max_new=new, method=method)
    for index, text in enumerate(texts):
        row = stretch.tokenizer.encode(text)
        passage = stretch.task.passage(row, method.for_sequences([index]), WritingOptions(rules=Rules(max_new=new)))
        written, job, jobs = [], passage.first, 0
        while job is not None:
            tokens = decode(stretch, job)
            written, jobs = written + tokens, jobs + 1
            job = passage.following(written) if len(tokens) == job.rules.max_new else None
        assert continued(passage.tokenizer, passage.before, written) == expected[index]
        assert jobs > 2


@pytest.mark.parametrize("method", [Greedy(), Beam(width=3)])
def test_a_translation_is_one_job(translator, method):
    text = "the red cow"
    beam = getattr(method, "width", 1)
    passage = translator.task.passage(translator.tokenizer.encode(text), method, WritingOptions())
    assert passage.following([1, 2]) is None
    tokens = decode(translator, passage.first)
    assert passage.tokenizer.decode(tokens) == translator.translate(text, beam=beam)
    inputs = translator.task.written_inputs(passage, tokens)
    assert inputs.ids == translator.task.trace_inputs(text, passage.tokenizer.decode(tokens)).ids


def test_what_is_not_read_is_counted(translator):
    row = translator.tokenizer.encode("the red cow") * 100
    short = replace(translator.task, context=20)
    passage = short.passage(row, Greedy(), WritingOptions())
    assert passage.unread == len(row) - (20 - short.frame("source").size)
    assert passage.prompt_tokens == 20


TOKENIZER = Tokenizer.train(["abcdefg"], kind="char")
FRAME = Framing(before=(1,), after=(2,), between=(2,), segment=1)


def test_a_line_is_two_texts():
    assert split_pair("a b\tc") == ("a b", "c")
    assert split_pair("a\t") == ("a", "")
    for line in ("a b", "a\tb\tc"):
        with pytest.raises(OptionError, match="expected two texts with one tab between"):
            split_pair(line)


def test_a_model_without_segments_is_given_none():
    task = Classify(tokenizers={"text": TOKENIZER}, context=7, labels=("x", "y"), framing={"text": FRAME})
    model = presets.bert(Size(1, 8, 2, 2, 8), vocabulary=20, length=7).build()
    made = task.frame_items(model, [("abc", "de"), ("a", "g")])
    assert made.segments is None
    a, b, c, d, e, g = TOKENIZER.encode("abcdeg")
    assert made.rows == [[1, a, b, 2, d, e, 2], [1, a, 2, g, 2]]
    assert c not in made.rows[0]


@pytest.mark.parametrize("room", range(8))
def test_all_the_room_is_used(room):
    for first, second in torch.cartesian_prod(torch.arange(6), torch.arange(6)).tolist():
        kept = share_room(first, second, room)
        assert sum(kept) == min(room, first + second)
        assert kept[0] <= first
        assert kept[1] <= second


WRITING = ["the cat eats the plum, größer", "the dog eats", "naïve café, the cow"] * 20
TOKENIZERS = MadeWhenAsked(lambda kind: Tokenizer.train(WRITING, kind, 330))


def source_rows(run, n=8):
    """Of very different lengths: beams search differently when the longest output may differ."""
    texts = [source for source, _ in pairs(n, seed=1)]
    return run.tokenizer.encode_batch([*texts, "eins", " ".join(texts[:4]), "z"])


@pytest.mark.parametrize("method", [Greedy(), Beam(width=3), Beam(width=4, n_best=2, length_penalty=0.5)])
@pytest.mark.slow
def test_a_translation_does_not_depend_on_its_batch(translator, method, monkeypatch):
    rows = source_rows(translator)
    together = translator.task.search(translator.model, rows, method)
    monkeypatch.setattr(answering, "ON_CPU", 100)
    in_small_batches = translator.task.search(translator.model, rows, method)
    alone = [translator.task.search(translator.model, [row], method)[0] for row in rows]
    for one, other, single in zip(together, in_small_batches, alone, strict=True):
        assert [found.tokens for found in one] == [found.tokens for found in single]
        assert [found.tokens for found in other] == [found.tokens for found in single]
        assert [found.score for found in one] == pytest.approx([found.score for found in single], abs=1e-4)


def test_a_source_longer_than_the_context_is_cut_and_an_empty_one_is_translated(translator):
    row = translator.tokenizer.encode("eins zwei " * 20)
    cut, whole, empty = translator.task.search(translator.model, [row[: CONTEXT - 1], row, []])
    assert cut[0].tokens == whole[0].tokens
    assert len(empty[0].tokens) <= CONTEXT


def test_no_translation_is_longer_than_the_context(translator):
    found = translator.task.search(translator.model, source_rows(translator))
    assert all(len(one.tokens) <= CONTEXT for [one] in found)


def test_texts_of_similar_length_may_become_equally_long():
    assert [reach(n) for n in range(1, 17)] == [48] * 16
    assert all(reach(n) >= 2 * n + 16 for n in range(1, 500))
    assert len({reach(n) for n in range(1, 257)}) == 5


@given(st.integers(1, 300), st.integers(1, 1000))
def test_a_window_never_needs_more_than_the_context(context, max_new):
    read, written = window(context, max_new)
    assert read >= 1
    assert 1 <= written <= max_new
    assert read + written - 1 <= context
    assert read >= context // 2


def continuations(run, prompts, method, max_new, framing=None):
    rows = run.tokenizer.encode_batch(prompts)
    return run.task.continue_rows(run.model, rows, method, max_new=max_new, framing=framing)


@pytest.mark.parametrize("method", [Greedy(), Sample(temperature=1.5, seeds=(7, 3, 11, 5))])
def test_a_continuation_does_not_depend_on_its_batch(documents, method):
    prompts = ["the", "the cow eats the plum", "", "the cat eats the apple, the dog eats the"]
    together = continuations(documents, prompts, method, 12)
    for i, prompt in enumerate(prompts):
        own = Sample(temperature=1.5, seeds=method.seeds[i]) if isinstance(method, Sample) else method
        [alone] = continuations(documents, [prompt], own, 12)
        assert alone[0].tokens == together[i][0].tokens


def test_within_the_context_it_is_what_decoding_gives(documents):
    row, end = documents.tokenizer.encode("the cat"), documents.tokenizer.end
    method = Sample(seeds=5)
    [[found]] = documents.task.continue_rows(documents.model, [row], method, max_new=10)
    [[plain]] = generate(documents.model, [[end, *row]], method, rules=Rules(max_new=10, end=(end,)))
    assert found.tokens == plain.tokens
    assert found.log_probs == pytest.approx(plain.log_probs, abs=1e-5)


def test_past_the_context_it_goes_on_from_the_last_half(stretch):
    row = stretch.tokenizer.encode("the")
    [[found]] = stretch.task.continue_rows(
        stretch.model, [row], Sample(seeds=2), max_new=3 * CONTEXT, framing=Framing()
    )
    assert len(found.tokens) == 3 * CONTEXT
    read, written = window(CONTEXT, 3 * CONTEXT)
    for start in range(0, len(found.tokens), written):
        seen = [*row, *found.tokens[:start]][-read:]
        [told] = score(stretch.model, [seen], [list(found.tokens[start : start + written])])
        assert found.log_probs[start : start + written] == pytest.approx(told.log_probs, abs=1e-4)
    later = found.tokens[written : 2 * written], found.tokens[2 * written : 3 * written]
    assert later[0] != later[1]


def test_an_end_token_ends_a_document_and_not_a_stretch(documents, stretch):
    [[ended]] = continuations(documents, ["the cat eats the plum, größer"], Greedy(), 200)
    assert ended.ended
    assert ended.tokens[-1] == documents.tokenizer.end
    [[endless]] = continuations(stretch, ["the cat"], Greedy(), 50, framing=Framing())
    assert not endless.ended
    assert len(endless.tokens) == 50


def test_each_prompt_needs_its_seed(documents):
    with pytest.raises(OptionError, match="3 sequences and 2 seeds"):
        continuations(documents, ["a", "b", "c"], Sample(seeds=(1, 2)), 5)


@pytest.mark.parametrize("kind", KINDS)
@given(prompt=st.text("the €😀"), text=st.text("the cat große €😀\n"))
def test_text_comes_piece_by_piece_and_no_character_in_halves(kind, prompt, text):
    tokenizer = TOKENIZERS[kind]
    before = tokenizer.encode(prompt)
    ids = [*before, *tokenizer.encode(text)]
    spoken = Detokenizer(tokenizer, before)
    pieces = [spoken.add(token) for token in ids[len(before) :]]
    assert tokenizer.decode(before) + "".join(pieces) + spoken.rest() == tokenizer.decode(ids)
    if tokenizer.lossless:
        assert "\ufffd" not in "".join(pieces)
        assert spoken.rest() == ""


def test_what_is_no_character_is_given_in_the_end():
    tokenizer = TOKENIZERS["byte"]
    ids = tokenizer.encode("a€")[:-1]
    spoken = Detokenizer(tokenizer)
    assert [spoken.add(token) for token in ids] == ["a", "", ""]
    assert spoken.rest() == tokenizer.decode(ids)[1:]
    assert spoken.rest().startswith("\ufffd")


def test_a_class_is_the_same_alone_and_its_probabilities_sum_to_one(classifier):
    texts = ["red plum", "old cow", "plum " * 25, "", "blue whale", "cat " * 90]
    together = classifier.classify(texts)
    for text, one in zip(texts, together, strict=True):
        [alone] = classifier.classify([text])
        assert alone.probabilities == pytest.approx(one.probabilities, abs=1e-6)
        assert sum(one.probabilities.values()) == pytest.approx(1)
        assert one.probability == max(one.probabilities.values()) == one.probabilities[one.label]


def test_only_blanks_are_touched(filler):
    texts = [
        "the <mask> eats the <mask>, größer",
        "  The\tCat eats<mask>plum 😀 ",
        "<mask> cat",
        "<mask>",
        "x<mask><mask>y",
    ]
    for text, found in zip(texts, filler.fill(texts, shown=3), strict=True):
        assert_fits(text, found.text)
        assert len(found.blanks) == text.count("<mask>")
        for blank in found.blanks:
            shares = [share for _, share in blank]
            assert len(blank) == 3
            assert shares == sorted(shares, reverse=True)
            assert all(0 < share <= 1 for share in shares)


def assert_fits(text, whole):
    """The parts around the blanks are all there, in order, at the two ends first and last."""
    first, *others = text.split("<mask>")
    assert whole.startswith(first)
    assert whole.endswith(others[-1])
    rest = whole.removeprefix(first)
    for part in others[:-1]:
        assert part in rest
        rest = rest.split(part, 1)[1] if part else rest
    assert "<mask>" not in whole


def test_a_filled_blank_has_one_space_before_it(filler):
    [found] = filler.fill(["the cow <mask> the plum, größer"])
    assert found.text == "the cow eats the plum, größer"
    assert found.blanks[0][0][0] == "▁eats"


def test_a_filling_is_the_same_alone(filler):
    texts = ["the <mask> eats", "the cow eats the <mask>, größer", "<mask>"]
    for text, one in zip(texts, filler.fill(texts), strict=True):
        [alone] = filler.fill([text])
        assert alone.text == one.text
        assert [share for blank in alone.blanks for _, share in blank] == pytest.approx(
            [share for blank in one.blanks for _, share in blank], abs=1e-6
        )


def test_no_special_token_fills_a_blank(filler):
    tokenizer = filler.tokenizer
    [found] = filler.fill(["the <mask>"], shown=tokenizer.vocabulary)
    special = {tokenizer.pad, tokenizer.unknown, tokenizer.start, tokenizer.end, tokenizer.mask}
    impossible = [piece for piece, share in found.blanks[0] if share == 0]
    assert sorted(impossible) == sorted(tokenizer.pieces(sorted(special)))


def test_blanks_past_the_context_stay(filler):
    text = "the <mask> eats" + " the plum" * CONTEXT + " <mask>"
    [found] = filler.fill([text])
    assert found.text.endswith(" the plum" * CONTEXT + " <mask>")
    assert found.text.count("<mask>") == 1
    assert len(found.blanks) == 1


def test_a_text_without_a_blank_is_refused(filler):
    with pytest.raises(OptionError, match="no blank to fill in 'the cat': write <mask>"):
        filler.fill(["the cat"])
    with pytest.raises(OptionError, match="shown is how many pieces"):
        filler.fill(["the <mask>"], shown=0)


@pytest.mark.parametrize("kind", ["bpe", "metaspace", "word", "char", "byte"])
def test_a_blank_stands_where_its_token_stood(kind, filler):
    tokenizer = TOKENIZERS[kind]
    task = type(filler.task)(tokenizers={"text": tokenizer}, context=CONTEXT)
    text, word = ("the cat eats", "cat") if kind not in ("char", "byte") else ("the cat eats", "c")
    before, _, after = text.partition(word)
    ids = tokenizer.encode(text)
    blanked = task.encode_blanks(f"{before}<mask>{after}")
    assert len(blanked) == len(ids)
    assert [one == other for one, other in zip(ids, blanked, strict=True)].count(False) == 1
    assert blanked.count(tokenizer.mask) == 1


def test_ends_of_line_become_spaces():
    assert one_line("a\nb\r\nc\rd\u2028e") == "a b c d\u2028e"


class Shouter:
    """A run with one verb, which answers a list."""

    @one_or_several(check_text)
    def shout(self, texts: list[str], *, mark: str = "!") -> list[str]:
        return [text.upper() + mark for text in texts]


RUN = Shouter()


def test_a_str_is_one_text_and_several_give_a_list():
    assert RUN.shout("vier") == "VIER!"
    assert RUN.shout(["vier", "zwei"]) == ["VIER!", "ZWEI!"]
    assert RUN.shout([]) == []
    assert RUN.shout((text for text in ("a", "b")), mark="?") == ["A?", "B?"]
    assert RUN.shout(texts="vier") == "VIER!"


def test_the_signature_says_that_both_are_taken():
    signature = inspect.signature(Shouter.shout)
    assert signature.parameters["texts"].annotation == str | list[str]
    assert signature.return_annotation == str | list[str]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (4, "texts: expected a str, or several of them in a list; came int"),
        (b"vier", "texts: expected a str, or several of them in a list; came bytes"),
        (["vier", 4], r"texts\[1\]: expected a text, a str; came 4"),
    ],
)
def test_what_is_no_text_is_told(texts, said):
    with pytest.raises(ClearheadError, match=said):
        RUN.shout(texts)


def test_a_pair_is_two_texts():
    assert check_list("texts", [("a", "b"), "c"], check_text_or_pair) == [("a", "b"), "c"]
    with pytest.raises(ClearheadError, match="expected a text, a str, or a pair of two; came"):
        check_text_or_pair("texts[0]", ("a", "b", "c"))


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "3"])
def test_at_least_one_new_token_is_asked_for(number):
    assert check_max_new(3) == 3
    with pytest.raises(ClearheadError, match="max_new: at least one token must be asked for, a whole number; came"):
        check_max_new(number)
