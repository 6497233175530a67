"""A compiled program is a model as any other: saved, loaded, decoded, traced, run by every kernel that serves it."""

import dataclasses
import itertools
import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from clearhead.attention.kernels import KERNELS
from clearhead.attention.layer import Attention
from clearhead.attention.weighting import Softmax
from clearhead.decoding import Beam, Greedy, Rules, generate
from clearhead.decoding.generating import eval_mode
from clearhead.errors import ProgramError, UnsupportedError
from clearhead.model.sizes import spec_from_json, spec_to_json
from clearhead.rasp import PROGRAMS, CompiledModel, compile, numeric, run
from clearhead.rasp.programs import reverse
from clearhead.tracing import trace_model
from tests.covering import few
from tests.decoding.plain import Case

pytestmark = pytest.mark.plain

SEVERAL = ("reverse", "histogram", "majority", "shift", "fraction-of-previous", "pattern", "copy")
CAUSAL = ("shift", "fraction-of-previous", "pattern", "copy")
FEW = 40
SHARP = (4.0, 6.0, 8.0, 10.0)


@pytest.fixture(scope="module")
def compiled():
    return {name: PROGRAMS[name].compile() for name in SEVERAL}


def inputs(name, length=4):
    """Some texts with their sources, as the program is given them."""
    program = PROGRAMS[name]
    texts = list(itertools.islice(itertools.product(program.vocabulary, repeat=length), 7, 7 + FEW))
    if program.source_vocabulary is None:
        return [(text,) for text in texts]
    sources = itertools.islice(itertools.product(program.source_vocabulary, repeat=length), FEW)
    return list(zip(texts, sources, strict=False))


def tensors(crafted, every):
    return [torch.cat(column) for column in zip(*(crafted.tensors(*one) for one in every), strict=True)]


def logits(crafted, every):
    with eval_mode(crafted.model):
        return crafted.model(*tensors(crafted, every))


@pytest.mark.parametrize("name", SEVERAL)
def test_saved_and_loaded_it_is_the_same_to_the_bit(name, compiled, tmp_path):
    crafted, every = compiled[name], inputs(name)
    crafted.save(tmp_path / "program.safetensors")
    loaded = CompiledModel.load(tmp_path / "program.safetensors")
    assert torch.equal(logits(loaded, every), logits(crafted, every))
    assert [loaded.run(*one) for one in every[:5]] == [crafted.run(*one) for one in every[:5]]
    for kept in ("ids", "vocabulary", "answers", "numeric", "length", "directions", "layouts"):
        assert getattr(loaded, kept) == getattr(crafted, kept)


@pytest.mark.parametrize("name", SEVERAL)
def test_its_spec_goes_to_json_and_back(name, compiled):
    spec = compiled[name].model.spec
    assert spec_from_json(spec_to_json(spec)) == spec


def test_a_file_that_is_none_is_told(tmp_path):
    with pytest.raises(ProgramError, match="cannot be read as a crafted model"):
        CompiledModel.load(tmp_path / "missing.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ProgramError, match=r"is no crafted model; one is written by CompiledModel\.save"):
        CompiledModel.load(tmp_path / "other.safetensors")
    (tmp_path / "other.safetensors").unlink()
    pairs = PROGRAMS["shift"].compile()
    pairs.answers = [("a", "b")]
    with pytest.raises(ProgramError, match="answers other than words and numbers"):
        pairs.save(tmp_path / "pairs.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["told", "state"])
def test_a_damaged_file_is_told(damage, compiled, tmp_path):
    path = tmp_path / "program.safetensors"
    compiled["shift"].save(path)
    with safe_open(path, framework="pt") as file:
        ((name, header),) = file.metadata().items()
    told, state = json.loads(header), load_file(path)
    (told if damage == "told" else state).popitem()
    save_file(state, path, metadata={name: json.dumps(told)})
    with pytest.raises(ProgramError, match="lacks something or is damaged"):
        CompiledModel.load(path)


@pytest.mark.parametrize("name", CAUSAL)
def test_on_a_cache_every_step_gives_the_logits_of_the_whole(name, compiled):
    """In a batch of prompts that differ in length, and of sources too."""
    crafted, ids = compiled[name], compiled[name].ids
    every = inputs(name, 5)[:6]
    texts = [crafted.encode(one[0]) for one in every]
    prompts = [text[: 1 + place % 3] for place, text in enumerate(texts)]
    steps = torch.tensor([text[len(prompt) :][:3] for text, prompt in zip(texts, prompts, strict=True)])
    sources = [crafted.encode(one[1], "source")[: 3 + place % 3] for place, one in enumerate(every) if len(one) > 1]
    case = Case(crafted.model, prompts, sources or None)
    with torch.no_grad():
        session = case.session()
        for step in range(steps.shape[1] + 1):
            wanted = [case.logits(row, [steps[row, :step].tolist()])[0, -1] for row in range(len(prompts))]
            torch.testing.assert_close(session.logits, torch.stack(wanted), rtol=0, atol=1e-6)
            if step < steps.shape[1]:
                session.extend(steps[:, step])
    assert ids["<s>"] == prompts[0][0]


@pytest.mark.parametrize("method", [Greedy(), Beam(width=3)])
def test_the_copy_program_decoded_gives_the_source(method, compiled):
    crafted = compiled["copy"]
    ids, named = crafted.ids, {number: symbol for symbol, number in crafted.ids.items()}
    sources = ["abc.", "a.", "ccabba.", "."]
    found = generate(
        crafted.model,
        [crafted.encode(source, "source") for source in sources],
        method,
        rules=Rules(max_new=7, end=(ids["."],)),
        prefix=[[ids["<s>"], ids["<go>"]]] * len(sources),
    )
    assert ["".join(named[token] for token in best.tokens) for best, *_ in found] == sources


def served(model, name, call):
    """What the call gives with this kernel in every attention; None if it is refused."""
    layers = [layer for layer in model.modules() if isinstance(layer, Attention)]
    for layer in layers:
        layer.kernel = name
    try:
        return call()
    except UnsupportedError:
        return None
    finally:
        for layer in layers:
            layer.kernel = "auto"


@pytest.mark.parametrize("name", SEVERAL)
def test_every_kernel_that_serves_it_gives_the_same(name, compiled):
    crafted, every = compiled[name], inputs(name)
    wanted = logits(crafted, every)
    found = {kernel: served(crafted.model, kernel, lambda: logits(crafted, every)) for kernel in KERNELS}
    assert {kernel for kernel, got in found.items() if got is not None} == {"reference", "blockwise"}
    for kernel in ("reference", "blockwise"):
        torch.testing.assert_close(found[kernel], wanted, rtol=0, atol=1e-6)


def kernels_of_softmax(name, kernels):
    program = PROGRAMS[name]
    crafted, every = program.compile(weighting=Softmax(), sharpness=30.0), inputs(name)
    wanted = served(crafted.model, "reference", lambda: logits(crafted, every))
    for kernel in kernels:
        got = served(crafted.model, kernel, lambda: logits(crafted, every))
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
        answers = served(crafted.model, kernel, lambda: crafted.run_batch(*zip(*every, strict=True)))
        assert answers == [pytest.approx(program.plain(*one), abs=1e-5) for one in every]


@pytest.mark.parametrize("name", SEVERAL)
def test_with_softmax_the_fused_kernel_serves_it_too(name):
    kernels_of_softmax(name, ("auto", "fused", "blockwise"))


@pytest.mark.slow
@pytest.mark.parametrize("name", few(["shift", "copy", "reverse"], 0))
def test_with_softmax_flex_serves_it_too(name):
    kernels_of_softmax(name, ("flex",))


@pytest.mark.parametrize("name", SEVERAL)
def test_a_trace_rebuilds_and_its_weights_are_shared_exactly(name, compiled):
    """Every row of weights is 0 but for k of them, each 1/k to the bit."""
    crafted = compiled[name]
    for one in inputs(name)[:3]:
        made = trace_model(crafted.model, *crafted.tensors(*one))
        for site in made.sites.values():
            for head in site.head:
                weight = head.rows().weight  # raises where it is not what the kernel gave
                count = (weight > 0).sum(-1, keepdim=True)
                assert torch.equal(weight, (weight > 0) / count)


def test_a_trace_names_what_the_stream_holds(compiled):
    """After the last block the direction of the answer is 1 and those of the other values are 0, to the bit."""
    crafted = compiled["reverse"]
    made = trace_model(crafted.model, *crafted.tensors("abbc"))
    last = made.value(list(made.stream)[-1])
    place = {name: number for number, name in enumerate(crafted.directions)}
    for index, token in enumerate("cbba", 1):
        assert {other: last[index, place[f"reverse:{other}"]].item() for other in "abc"} == {
            other: float(other == token) for other in "abc"
        }


def test_in_float64_it_is_the_same_and_in_bfloat16_words_still_are():
    crafted = PROGRAMS["sort"].compile()
    every = inputs("reverse")
    wanted = [PROGRAMS["sort"].plain(text) for (text,) in every]
    for dtype in (torch.float64, torch.bfloat16):
        crafted.model.to(dtype)
        assert crafted.run_batch([text for (text,) in every]) == wanted


def error(name, sharpness):
    """The greatest difference of a logit from the exact model's."""
    program = PROGRAMS[name]
    every = [one for length in (1, 3, 5) for one in inputs(name, length)[:20]]
    soft, exact = program.compile(weighting=Softmax(), sharpness=sharpness), program.compile()
    return max((logits(soft, [one]) - logits(exact, [one])).abs().max().item() for one in every)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shift", "fraction-of-previous", "copy"])
def test_the_error_of_softmax_shrinks_like_exp_of_the_sharpness(name):
    """Of one layer: what is not chosen lies 1 or more below, so each of n keys has exp(-sharpness) of the weight."""
    errors = [error(name, sharpness) for sharpness in SHARP]
    for sharpness, found in zip(SHARP, errors, strict=True):
        assert 0 < found <= 2 * PROGRAMS[name].length * math.exp(-sharpness)
    for before, after in itertools.pairwise(errors):
        assert math.exp(-2) / 1.5 < after / before < math.exp(-2) * 1.5


@pytest.mark.parametrize("name", ["reverse", "histogram", "majority", "sort"])
def test_layers_that_settle_take_the_error_away(name):
    """A network's thresholds leave no error of the layer before; the sharper the better, and right from 10 on."""
    program, every = PROGRAMS[name], inputs(name, 5)
    blunt, sharp = (program.compile(weighting=Softmax(), sharpness=sharpness) for sharpness in (0.02, 10.0))
    assert [sharp.run(*one) for one in every] == [program.plain(*one) for one in every]
    assert [blunt.run(*one) for one in every] != [program.plain(*one) for one in every]


def test_the_model_is_an_ordinary_one(compiled):
    """Its parts are those of any model, without norms; moved, copied and trained as one."""
    crafted = compiled["shift"]
    spec = crafted.model.spec
    assert type(crafted.model).__name__ == "Decoder"
    again = dataclasses.replace(spec).build()
    again.load_state_dict(crafted.model.state_dict())
    ids = crafted.tensors("abca")[0]
    assert torch.equal(again.eval()(ids), crafted.model(ids))
    again.train()(ids).sum().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in again.parameters())


def test_a_number_may_be_what_is_decoded_and_saved(tmp_path):
    program = numeric(reverse())
    crafted = compile(program, (1, 2, 3), length=4)
    crafted.save(tmp_path / "numbers.safetensors")
    assert (
        CompiledModel.load(tmp_path / "numbers.safetensors").run((1, 2, 3))
        == run(program, (1, 2, 3))
        == [3.0, 2.0, 1.0]
    )
