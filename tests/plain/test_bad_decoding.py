"""A wrong request to decoding is told at once: what was expected, what came, what to do. As a user runs it."""

import re
from dataclasses import replace

import pytest
import torch

from clearhead import masks
from clearhead.decoding import Beam, Greedy, Rules, Sample, generate, score, stream
from clearhead.errors import ClearheadError, OptionError, ShapeError
from clearhead.model import presets
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.outputs import Classes
from clearhead.model.transformers import DecoderSpec

VOCABULARY, LENGTH = 12, 8
RULES = Rules(max_new=3)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def decoder():
    return presets.gpt2("tiny", vocabulary=VOCABULARY, length=LENGTH).build()


@pytest.fixture(scope="module")
def both():
    """An encoder-decoder with as many learned positions on either side."""
    spec = presets.tiny(VOCABULARY)
    learned = presets.gpt2("tiny", length=LENGTH).embedding
    sides = {name: replace(getattr(spec, name), embedding=learned) for name in ("encoder", "decoder")}
    return replace(spec, **sides).build()


def told(call, message, error=OptionError):
    """The error is one of ours, is raised at once, and says this."""
    with pytest.raises(ClearheadError, match=message) as caught:
        call()
    assert type(caught.value) is error


OPTIONS = {
    "no temperature": (lambda: Sample(temperature=0), "temperature must be above 0 and finite; came 0. .* use Greedy"),
    "negative temperature": (lambda: Sample(temperature=-1.0), "temperature must be above 0 and finite; came -1.0"),
    "infinite temperature": (lambda: Sample(temperature=INF), "temperature must be above 0 and finite; came inf"),
    "temperature nan": (lambda: Sample(temperature=NAN), "temperature must be above 0 and finite; came nan"),
    "top_p 0": (lambda: Sample(top_p=0.0), "top_p is a probability above 0 and up to 1; came 0.0"),
    "top_p 2": (lambda: Sample(top_p=2.0), "top_p is a probability above 0 and up to 1; came 2.0"),
    "top_p nan": (lambda: Sample(top_p=NAN), "top_p is a probability above 0 and up to 1; came nan"),
    "top_k 0": (lambda: Sample(top_k=0), "top_k must be 1 or more, or None to keep all; came 0"),
    "negative top_k": (lambda: Sample(top_k=-3), "top_k must be 1 or more, or None to keep all; came -3"),
    "negative min_p": (
        lambda: Sample(min_p=-0.1),
        "min_p is a share of the likeliest's probability, 0 to 1; came -0.1",
    ),
    "min_p 1.5": (lambda: Sample(min_p=1.5), "min_p is a share of the likeliest's probability, 0 to 1; came 1.5"),
    "width 0": (lambda: Beam(width=0), "width must be 1 or more; came 0"),
    "n_best 0": (lambda: Beam(n_best=0), "n_best must lie between 1 and the width, 5; came 0"),
    "n_best over width": (lambda: Beam(width=2, n_best=3), "n_best must lie between 1 and the width, 2; came 3"),
    "unknown stop": (lambda: Beam(stop="never"), "stop must be one of exact, heuristic, early; came 'never'"),
    "length penalty nan": (lambda: Beam(length_penalty=NAN), "length_penalty must be a number; came nan"),
    "length penalty inf": (lambda: Beam(length_penalty=INF), "length_penalty must be .*number; came inf"),
    "length penalty -inf": (lambda: Beam(length_penalty=-INF), "length_penalty must be .*number; came -inf"),
    "max_new 0": (lambda: Rules(max_new=0), "max_new: at least one token must be asked for; came 0"),
    "negative max_new": (lambda: Rules(max_new=-2), "max_new: at least one token must be asked for; came -2"),
    "min_new over max_new": (lambda: Rules(max_new=3, min_new=4), "min_new must lie between 0 and max_new = 3; came 4"),
    "negative min_new": (lambda: Rules(max_new=3, min_new=-1), "min_new must lie between 0 and max_new = 3; came -1"),
    "negative no_repeat": (lambda: Rules(max_new=3, no_repeat=-1), "no_repeat is a number of tokens in a row.*came -1"),
    "no penalty": (lambda: Rules(max_new=3, repetition_penalty=0), "repetition_penalty must be above 0.*came 0"),
    "presence inf": (lambda: Rules(max_new=3, presence_penalty=INF), "presence_penalty must be a number.*came inf"),
    "frequency nan": (lambda: Rules(max_new=3, frequency_penalty=NAN), "frequency_penalty must be a number.*came nan"),
    "bias of a dict": (lambda: Rules(max_new=3, logit_bias={7: 1.0}), r"logit_bias: expected pairs.*came \{7: 1.0\}"),
    "bias nan": (lambda: Rules(max_new=3, logit_bias=((7, NAN),)), "logit_bias: expected pairs.*nan"),
    "penalty nan": (lambda: Rules(max_new=3, repetition_penalty=NAN), "repetition_penalty must be above 0.*came nan"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    told(*OPTIONS[name])


INPUTS = {
    "empty prompt": ([[1, 2], []], r"inputs\[1\] is empty: there must be a token to go on from; give a start token"),
    "only an empty prompt": ([[]], r"inputs\[0\] is empty"),
    "id too large": ([[1], [3, VOCABULARY]], r"inputs\[1\]: ids go from 0 to 11 in this vocabulary; there is 12"),
    "negative id": ([[1, -1]], r"inputs\[0\]: ids go from 0 to 11 in this vocabulary; there is -1"),
    "floats": ([[1.0, 2.0]], r"inputs\[0\]: token ids are whole numbers; there is 1\.0"),
    "a tensor of floats": (torch.ones(1, 2), r"inputs\[0\]: token ids are whole numbers; there is 1\.0"),
    "strings": (["hello"], r"inputs\[0\]: token ids are whole numbers; there is 'h'"),
    "a string": ("hello", r"inputs\[0\]: token ids are whole numbers; there is 'h'"),
    "words": ([["hello", "world"]], r"inputs\[0\]: token ids are whole numbers; there is 'hello'"),
    "bools": ([[True, False]], r"inputs\[0\]: token ids are whole numbers; there is True"),
    "a tensor of bools": (
        torch.ones(1, 2, dtype=torch.bool),
        r"inputs\[0\]: token ids are whole numbers; there is True",
    ),
    "a row with a word": ([1, "a"], r"inputs\[0\]: token ids are whole numbers; there is 'a'"),
    "a row among rows": ([[1], 2], "inputs: expected rows of token ids; came 2 among them"),
    "a flat tensor of floats": (torch.ones(2), r"inputs\[0\]: token ids are whole numbers; there is 1\.0"),
    "a number": (7, "inputs: expected token ids, one row or several; came int"),
    "a tensor of one number": (torch.tensor(7), "inputs: expected token ids, one row or several; came Tensor"),
    "nothing": (None, "inputs: expected token ids, one row or several; came NoneType"),
    "a row that is none": ([[1], None], "inputs: expected rows of token ids; came None among them"),
    "rows of rows": ([[[1, 2]]], r"inputs\[0\]: token ids are whole numbers; there is \[1, 2\]"),
    "past the learned positions": (
        [[1], [2] * 9],
        r"inputs\[1\] has 9 tokens, and this model has learned 8 positions; shorten it",
    ),
    "past them with what is new": (
        [[1], [2] * 7],
        r"inputs\[1\] has 7 tokens, and with max_new = 3 .* more than the 8 positions.*at most 2 new tokens",
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(decoder, name):
    inputs, message = INPUTS[name]
    told(lambda: generate(decoder, inputs, rules=RULES), message)
    told(lambda: generate(decoder, inputs, Beam(), rules=RULES), message)
    told(lambda: stream(decoder, inputs, rules=RULES), message)


@pytest.mark.parametrize("name", INPUTS)
def test_prefixes(both, name):
    """What is wrong in a prompt is as wrong in a prefix, which is told by its name."""
    prefix, message = INPUTS[name]
    message = "starts its output from a token" if prefix is None else message.replace("inputs", "prefix")
    told(lambda: generate(both, [[1], [2]], rules=RULES, prefix=prefix), message)


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "past them with what is new"])
def test_sources(both, name):
    inputs, message = INPUTS[name]
    told(lambda: generate(both, inputs, rules=RULES, prefix=[[1]]), message)
    told(lambda: score(both, inputs, [[1], [1]], prefix=[[1]]), message)


def test_a_source_may_be_as_long_as_there_are_positions_whatever_is_new(both):
    assert generate(both, [[1] * LENGTH], rules=RULES, prefix=[[1]])
    told(
        lambda: generate(both, [[1]], rules=RULES, prefix=[[1] * 7]), r"prefix\[0\] has 7 tokens, and with max_new = 3"
    )


@pytest.mark.parametrize("method", [Greedy(), Sample(), Beam()], ids=["greedy", "sample", "beam"])
@pytest.mark.parametrize(("end", "said"), [((2, VOCABULARY), "12"), ((-1,), "-1")])
def test_end_tokens(decoder, method, end, said):
    message = f"end: ids go from 0 to 11 in this vocabulary; there is {said}$"
    told(lambda: generate(decoder, [[1]], method, rules=Rules(max_new=3, end=end)), message)


@pytest.mark.parametrize("end", [3, "3", (True,), (1.0,)], ids=repr)
def test_end_tokens_that_are_none(decoder, end):
    told(lambda: generate(decoder, [[1]], rules=Rules(max_new=3, end=end)), "end: .*came|end: .*there is")


def test_numbers_of_things(decoder, both):
    told(
        lambda: generate(both, [[1], [2], [3]], rules=RULES, prefix=[[1], [2]]),
        "prefix: expected one row, or one for each of the 3 inputs; came 2",
    )
    told(lambda: generate(both, [[1]], rules=RULES, prefix=[]), "prefix: expected one row.*1 inputs; came 0")
    told(
        lambda: generate(decoder, [[1], [2]], Sample(seeds=(1, 2, 3)), rules=RULES),
        "there are 2 sequences and 3 seeds; give one for each",
    )
    told(lambda: score(decoder, [[1], [2]], [[1]]), "there are 2 inputs and 1 outputs; give one for each")
    told(lambda: score(decoder, [], [[1]]), "there are 0 inputs and 1 outputs; give one for each")


def test_wrong_seeds_of_a_stream_are_told_when_it_is_made(decoder):
    told(lambda: stream(decoder, [[1], [2]], Sample(seeds=(1,)), rules=RULES), "there are 2 sequences and 1 seeds")


def test_prefix_where_there_is_none_and_none_where_there_is_one(decoder, both):
    for run in (generate, stream):
        told(
            lambda run=run: run(decoder, [[1]], rules=RULES, prefix=[[1]]),
            "prefix is for an encoder-decoder; a decoder goes on from its inputs: put it there",
        )
        told(
            lambda run=run: run(both, [[1]], rules=RULES),
            r"an encoder-decoder starts its output from a token: give prefix=\[start\], or a row for each source",
        )
    told(lambda: score(decoder, [[1]], [[1]], prefix=[[1]]), "prefix is for an encoder-decoder")
    told(lambda: score(both, [[1]], [[1]]), "starts its output from a token")


def test_what_cannot_write(both):
    bert = presets.bert("tiny", vocabulary=VOCABULARY).build()
    told(lambda: generate(bert, [[1]], rules=RULES), "only a Decoder or an EncoderDecoder writes text; came Encoder")
    told(lambda: generate(both.encoder, [[1]], rules=RULES), "only a Decoder or an EncoderDecoder.*came Encoder")
    told(lambda: generate("gpt2", [[1]], rules=RULES), "only a Decoder or an EncoderDecoder writes text; came str")
    told(lambda: score(bert, [[1]], [[1]]), "only a Decoder or an EncoderDecoder writes text; came Encoder")
    told(lambda: generate(both.decoder, [[1]], rules=RULES), "has cross-attention and was given nothing to attend to")


def test_an_output_for_classes():
    spec = replace(presets.gpt2("tiny", vocabulary=VOCABULARY), output=Classes(3))
    message = re.escape(
        "this decoder's output is Classes(3); "
        "to write text it must be NextToken, or one of your own that is causal and by_position"
    )
    for run in (generate, stream):
        told(lambda run=run: run(spec.build(), [[1]], rules=RULES), message)
    told(lambda: score(spec.build(), [[1]], [[1]]), message)


def test_a_beam_cannot_be_streamed(decoder):
    told(lambda: stream(decoder, [[1]], Beam(), rules=RULES), "a beam may change its mind until the end: stream Greedy")


@pytest.mark.parametrize("method", ["greedy", Greedy, Sample, Beam, None], ids=str)
def test_what_is_no_method(decoder, method):
    told(lambda: generate(decoder, [[1]], method, rules=RULES), "method")
    told(lambda: stream(decoder, [[1]], method, rules=RULES), "method")


def test_candidates_below_zero(decoder):
    for run in (generate, stream):
        told(
            lambda run=run: run(decoder, [[1]], rules=RULES, candidates=-1),
            "candidates is how many likeliest tokens to give, 0 or more; came -1",
        )


OUTPUTS = {
    "empty": ([[]], r"outputs\[0\] is empty"),
    "floats": ([[1.0]], r"outputs\[0\]: token ids are whole numbers; there is 1\.0"),
    "bools": ([[True]], r"outputs\[0\]: token ids are whole numbers; there is True"),
    "more rows than inputs": ([[1], [2]], "there are 1 inputs and 2 outputs; give one for each"),
    "id too large": ([[VOCABULARY, 1]], "outputs.*ids go from 0 to 11 in this vocabulary; there is 12"),
    "last id too large": ([[1, VOCABULARY]], "outputs.*ids go from 0 to 11 in this vocabulary; there is 12"),
    "last id negative": ([[1, -1]], "outputs.*ids go from 0 to 11 in this vocabulary; there is -1"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_to_score(decoder, name):
    outputs, message = OUTPUTS[name]
    told(lambda: score(decoder, [[1]], outputs), message)


def test_an_output_past_the_learned_positions_is_told_in_words_of_score(decoder):
    """There is no max_new to change where nothing is generated."""
    with pytest.raises(OptionError, match="8 positions") as caught:
        score(decoder, [[1, 2]], [[3] * 9])
    assert "max_new" not in str(caught.value)


MASKS = {
    "documents shorter than the text": (masks.document([0] * 4), [[1, 2, 3]], "there are .* keys but 4 ids"),
    "documents of other rows": (
        masks.document([[0] * 9, [1] * 9]),
        [[1], [2], [3]],
        "one for each of the 3 batch rows; came 2",
    ),
    "a table smaller than the text": (
        masks.tensor(torch.ones(4, 4, dtype=torch.bool)),
        [[1, 2, 3]],
        "mask tensor must broadcast",
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_do_not_fit_what_is_written(name):
    """What a forward of the same text says, decoding says too."""
    mask, inputs, message = MASKS[name]
    block = BlockSpec(attention=AttentionSpec(heads=2, mask=mask), feed_forward=None)
    model = DecoderSpec(vocabulary=VOCABULARY, d_model=16, blocks=(block,)).build()
    told(lambda: model(torch.ones(3, 6, dtype=torch.long)), message, ShapeError)
    told(lambda: generate(model, inputs, rules=Rules(max_new=4)), message, ShapeError)


def test_a_wrong_request_leaves_the_model_in_its_mode(decoder):
    decoder.train()
    for inputs in ([[]], [[99]]):
        with pytest.raises(ClearheadError):
            generate(decoder, inputs, rules=RULES)
        assert decoder.training
