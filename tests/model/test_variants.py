"""Variants: each option changes its own part of every block and nothing else; what cannot be is told.

And the default recipe of each task, whose models they change.
"""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clearhead.attention import masks
from clearhead.attention.heads import Heads, SlicedHeads
from clearhead.attention.similarity import Cosine, Dot, ScaledDot
from clearhead.cli.demo import demo_recipe
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.arrangements import NoNorm, PostNorm, PreNorm, SingleResidualNorm
from clearhead.model.feedforward import GELU, ReLU, SwiGLU
from clearhead.model.norms import LayerNorm, RMSNorm
from clearhead.model.outputs import Classes
from clearhead.model.presets import Size
from clearhead.model.sizes import spec_from_json, spec_to_json
from clearhead.model.variants import (
    ATTENTIONS,
    PARTS,
    POSITIONS,
    map_attention,
    with_attention,
    with_dropout,
    with_part,
    with_parts,
    with_position,
)
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing
from clearhead.text.sources import Documents
from clearhead.training.machine import resolve_machine
from clearhead.training.recipe import Budget, Checkpointing, Machine, read_recipe
from clearhead.training.tasks import TASKS, default_recipe
from clearhead.training.tasks.learning import decoder, encoder, epochs, text_bytes
from clearhead.training.train import train
from clearhead.training.train_step import BatchStream, TrainState
from tests.training import small_runs
from tests.training.small_runs import write_lines
from tests.training.tiny import quiet, work_on

DOCS = Path(__file__).parents[2] / "docs"
SIZE = Size(2, 32, 4, 4, 48)
SPECS = {
    "encoder-decoder": presets.classic(20, size=SIZE),
    "decoder": decoder(SIZE, 16, 0.0),
    "encoder": encoder(SIZE, Classes(2), 0.0),
}
CASES = [
    ({"heads": "sliced"}, lambda block: isinstance(block.attention.heads, SlicedHeads)),
    ({"value_rank": "3"}, lambda block: block.attention.heads == Heads(4, kv=block.attention.heads.kv, value_rank=3)),
    ({"value_rank": "8", "d_value": "32"}, lambda block: block.attention.heads.d_value == 32),
    ({"block": "pre"}, lambda block: block.arrangement == PreNorm()),
    ({"block": "post"}, lambda block: block.arrangement == PostNorm()),
    ({"block": "single-residual"}, lambda block: block.arrangement == SingleResidualNorm()),
    ({"block": "none"}, lambda block: block.arrangement == NoNorm()),
    ({"scale": "none"}, lambda block: block.attention.similarity == Dot()),
    ({"scale": "sqrt"}, lambda block: block.attention.similarity == ScaledDot()),
    ({"scale": "0.25"}, lambda block: block.attention.similarity == ScaledDot(0.25)),
    ({"feed_forward": "none"}, lambda block: block.feed_forward is None),
    ({"feed_forward": "swiglu"}, lambda block: block.feed_forward == SwiGLU(48)),
    ({"window": "3"}, lambda block: block.attention.mask in (masks.window(2), masks.window(2, 2))),
    ({"mask": "none"}, lambda block: block.attention.mask is None),
    ({"scale": "none", "heads": "sliced", "block": "none", "feed_forward": "none"}, lambda block: True),
]


def blocks(spec):
    return (*spec.encoder.blocks, *spec.decoder.blocks) if len(spec.stacks) > 1 else spec.blocks


def run(model, spec):
    tokens = torch.tensor([[1, 2, 3, 4]])
    return model(tokens, tokens) if len(spec.stacks) > 1 else model(tokens)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(("parts", "holds"), CASES, ids=lambda one: str(one) if isinstance(one, dict) else "")
@pytest.mark.pairs(1)
def test_a_variant_changes_every_block_builds_learns_and_is_stored(kind, parts, holds):
    spec = with_parts(SPECS[kind], parts, context=16)
    assert all(map(holds, blocks(spec)))
    assert spec_from_json(spec_to_json(spec)) == spec
    model = spec.build()
    run(model, spec).square().mean().backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())


def test_cross_attention_changes_with_the_rest():
    spec = with_parts(SPECS["encoder-decoder"], {"heads": "sliced", "scale": "none"}, context=16)
    for block in spec.decoder.blocks:
        assert (block.cross.heads, block.cross.similarity) == (SlicedHeads(4), Dot())


def test_no_scale_leaves_scores_as_they_are_and_a_factor_multiplies_them():
    """The same weights with three scales: the weights of a head are softmax(factor · q·k)."""
    torch.manual_seed(0)
    base = encoder(SIZE, Classes(2), 0.0)
    x = torch.randn(1, 5, 32)
    state = base.blocks[0].attention.build(32).state_dict()
    for text, factor in (("sqrt", 8**-0.5), ("none", 1.0), ("0.125", 0.125)):
        layer = with_part(base, "scale", text, context=16).blocks[0].attention.build(32)
        layer.load_state_dict(state)
        steps = layer.explain(x)
        torch.testing.assert_close(steps.weight, (factor * steps.score).softmax(-1))


def test_what_is_not_asked_for_stays():
    spec = presets.bert("tiny", vocabulary=30)
    assert blocks(with_part(spec, "block", "pre", context=16))[0].arrangement == PreNorm(LayerNorm(1e-12))
    llama = presets.llama("tiny", vocabulary=30)
    assert blocks(with_part(llama, "block", "post", context=16))[0].arrangement == PostNorm(RMSNorm())
    assert with_part(llama, "feed_forward", "swiglu", context=16) == llama
    gelu = decoder(SIZE, 16, 0.0)
    assert with_part(gelu, "feed_forward", "gelu", context=16) == gelu
    assert blocks(with_part(gelu, "feed_forward", "relu", context=16))[0].feed_forward == ReLU(48)
    assert isinstance(blocks(gelu)[0].feed_forward, GELU)


def test_heads_go_there_and_back():
    spec = SPECS["encoder"]
    there = with_part(spec, "heads", "sliced", context=16)
    assert with_part(there, "heads", "sliced", context=16) == there
    assert with_part(there, "heads", "whole", context=16) == spec
    bare = replace(spec.blocks[0], attention=replace(spec.blocks[0].attention, heads=4))
    assert blocks(with_part(replace(spec, blocks=(bare,)), "heads", "sliced", context=16))[0].attention.heads == (
        SlicedHeads(4)
    )


IMPOSSIBLE = [
    ("encoder", {"heads": "sliced", "d_value": "4"}, "d_value: only heads that see the whole input"),
    (
        "encoder",
        {"block": "single-residual", "feed_forward": "none"},
        "SingleResidualNorm .* this block has no feed-forward",
    ),
    ("encoder", {"attention": "cosine", "scale": "none"}, "scale: .* scores by Cosine.*, which has no such factor"),
    ("encoder", {"attention": "kernelized", "scale": "2"}, "scale: .* which has no such factor"),
    ("encoder", {"heads": "round"}, "heads: there is no 'round'; there are whole, sliced"),
    (
        "encoder",
        {"block": "mid"},
        "block: there is no 'mid'; there are pre, post, parallel, sandwich, single-residual, none",
    ),
    ("encoder", {"feed_forward": "tanh"}, "feed_forward: there is no 'tanh'; there are relu"),
    ("encoder", {"value_rank": "0"}, "value_rank: expected a whole number from 1 to 999,999,999; came '0'"),
    ("encoder", {"d_value": "9" * 5000}, "d_value: expected a whole number from 1 to 999,999,999; came '99"),
    ("encoder", {"d_value": "-1"}, "d_value: expected a whole number from 1 to 999,999,999; came '-1'"),
    ("encoder", {"depth": "3"}, "'depth' cannot be varied; there are attention, scale, heads"),
    *(
        ("encoder", {"scale": bad}, "scale: expected sqrt, none, or a number above 0")
        for bad in ("0", "-1", "nan", "inf", "x")
    ),
]


@pytest.mark.parametrize(("kind", "parts", "why"), IMPOSSIBLE)
def test_what_cannot_be_is_told(kind, parts, why):
    with pytest.raises(OptionError, match=why):
        with_parts(SPECS[kind], parts, context=16)


def test_heads_that_share_keys_cannot_be_sliced():
    with pytest.raises(OptionError, match="they share no key heads"):
        with_part(presets.llama("tiny", vocabulary=30), "heads", "sliced", context=16)


def test_a_scale_takes_the_dot_product_that_is_there_and_not_another_similarity():
    spec = with_part(SPECS["encoder"], "attention", "cosine", context=16)
    assert blocks(spec)[0].attention.similarity == Cosine()
    for name in ("softmax", "sigmoid", "sparsemax", "argmax"):
        changed = with_parts(SPECS["encoder"], {"scale": "none", "attention": name}, context=16)
        assert blocks(changed)[0].attention.similarity == Dot()


def test_the_order_in_which_parts_are_given_does_not_matter():
    parts = {"position": "learned", "scale": "none", "attention": "sparsemax", "value_rank": "2", "heads": "whole"}
    forward = with_parts(SPECS["decoder"], parts, context=16)
    assert with_parts(SPECS["decoder"], dict(reversed(parts.items())), context=16) == forward
    assert set(parts) < set(PARTS)


def test_the_demo_is_pre_norm_and_the_classic_post_norm_as_the_docs_say():
    corpus = Corpus(train=Documents(paths=("train.txt",)))
    arrangements = {block.arrangement for block in blocks(demo_recipe(corpus, 1).model)}
    assert arrangements == {PreNorm()}
    for preset in ("tiny", "base", "big"):
        assert {block.arrangement for block in blocks(getattr(presets, preset)(vocabulary=20))} == {PostNorm()}
    page = " ".join((DOCS / "training.md").read_text(encoding="utf-8").split())
    assert "The paper's Transformer is post-norm" in page
    assert "the model of `clearhead demo` is pre-norm" in page


def test_the_results_have_a_row_for_every_variant_of_the_benchmark():
    found = runpy.run_path(str(DOCS.parent / "benchmarks" / "note_variants.py"))["VARIANTS"]
    page = (DOCS.parent / "benchmarks/results/trainings.md").read_text(encoding="utf-8")
    for name, parts in found.items():
        options = " ".join(f"--{part.replace('_', '-')} {value}" for part, value in parts.items())
        assert f"| {name} | `{options}` |" in page
        with_parts(SPECS["encoder-decoder"], parts, context=16).build()


def test_a_window_looks_back_in_a_decoder_and_both_ways_in_an_encoder_and_crosses_nothing():
    spec = with_parts(SPECS["encoder-decoder"], {"window": "3"}, context=16)
    assert {block.attention.mask for block in spec.encoder.blocks} == {masks.window(2, 2)}
    assert {block.attention.mask for block in spec.decoder.blocks} == {masks.window(2)}
    assert {block.cross.mask for block in spec.decoder.blocks} == {None}
    assert with_part(spec, "window", "5", context=16).decoder.blocks[0].attention.mask == masks.window(4)
    with pytest.raises(OptionError, match=r"window: expected a whole number from 1 to 999,999,999; came 'wide'"):
        with_part(spec, "window", "wide", context=16)


def test_a_window_is_beside_another_mask():
    masked = map_attention(SPECS["decoder"], lambda slot: replace(slot, mask=~masks.window(0)))
    mask = with_part(masked, "window", "3", context=16).blocks[0].attention.mask
    assert masks.show(mask & masks.causal(), n_query=4, n_key=4)[0].int().tolist()[3] == [0, 1, 1, 0]


CPU = Machine(device="cpu", threads=1)
KINDS = {
    "translate": small_runs.translating,
    "generate": small_runs.documents,
    "fill": small_runs.filling,
    "classify": small_runs.classifying,
}
SIZES = [1e3, 1e6, 1e8, 1e10]
tasks = pytest.mark.parametrize("task", KINDS)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("defaults")
    return {task: kind(folder)[1] for task, kind in KINDS.items()}


def small(spec):
    """As large as a test has patience for."""
    return {
        "EncoderDecoderSpec": lambda: presets.classic(64, size=Size(1, 16, 2, 2, 32), dropout=0.1),
        "DecoderSpec": lambda: decoder(Size(1, 16, 2, 2, 32), 32, 0.1),
        "EncoderSpec": lambda: encoder(Size(1, 16, 2, 2, 32), spec.output, 0.1),
    }[type(spec).__name__]()


@tasks
@pytest.mark.slow
def test_it_trains_as_it_is(task, sources, tmp_path):
    recipe = default_recipe(task, Corpus(train=sources[task]), CPU)
    recipe = replace(
        recipe,
        tokenizing=replace(recipe.tokenizing, size=300),
        batching=replace(recipe.batching, tokens=256),
        budget=Budget(steps=2),
        checkpointing=Checkpointing(score_records=1, samples=1),
    )
    run = train(tmp_path / "run", recipe, log=quiet)
    assert run.step == 2
    kept = read_recipe(tmp_path / "run" / "recipe.json")
    assert kept.model == run.model.spec
    assert kept == replace(recipe, model=kept.model, machine=kept.machine)


@tasks
@pytest.mark.pairs(1)
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.slow
def test_every_size_of_text_has_a_recipe(task, on_gpu, sources):
    corpus = Corpus(train=sources[task])
    found = [TASKS[task].default_recipe(corpus, int(size), on_gpu) for size in SIZES]
    steps = [recipe.budget.steps for recipe in found]
    assert steps == sorted(steps)
    assert 100 <= steps[0] <= steps[-1] <= 20_000
    for recipe in found:
        assert recipe.task == task
        assert recipe.optimizer.schedule.warmup < recipe.budget.steps
        assert recipe.checkpointing.evaluate < recipe.budget.steps
    with torch.device("meta"):
        sizes = [sum(one.numel() for one in recipe.model.build().parameters()) for recipe in found]
    assert sizes == sorted(sizes)


@pytest.mark.slow
def test_a_gpu_affords_a_larger_model(sources):
    with torch.device("meta"):
        for task in ("translate", "generate", "fill"):
            corpus = Corpus(train=sources[task])
            on_cpu, on_gpu = (
                sum(one.numel() for one in TASKS[task].default_recipe(corpus, 10**8, gpu).model.build().parameters())
                for gpu in (False, True)
            )
            assert on_gpu > 3 * on_cpu


def test_a_task_that_is_none(sources):
    with pytest.raises(OptionError, match="task: there is no 'juggle'; there are translate, generate, fill, classify"):
        default_recipe("juggle", Corpus(train=sources["fill"]))


def test_the_size_of_a_text_is_that_of_its_files(tmp_path):
    plain = write_lines(tmp_path / "a.txt", ["x" * 99])
    packed = tmp_path / "b.gz"
    packed.write_bytes(b"x" * 50)
    assert text_bytes(Corpus(train=small_runs.Documents(paths=(plain,), unit="line"))) == 100
    assert text_bytes(Corpus(train=small_runs.Documents(paths=(plain, str(packed)), unit="line"))) == 100 + 3 * 50


def test_steps_of_epochs():
    assert epochs(10, 100_000.0, 1000) == 1000
    assert epochs(10, 1.0, 1000) == 500
    assert epochs(10, 1e12, 1000) == 20_000
    assert epochs(10, 125_000.0, 1000) == 1200


CHANGES = (
    [(f"attention {name}", lambda spec, name=name: with_attention(spec, name)) for name in ATTENTIONS]
    + [(f"position {name}", lambda spec, name=name: with_position(spec, name, 32)) for name in POSITIONS]
    + [(f"dropout {share}", lambda spec, share=share: with_dropout(spec, share)) for share in (0.0, 0.5)]
)


@tasks
@pytest.mark.parametrize("change", [change for _, change in CHANGES], ids=[name for name, _ in CHANGES])
@pytest.mark.pairs(1)
def test_every_kind_of_model_trains_two_steps(task, change, sources, tmp_path_factory):
    recipe = default_recipe(task, Corpus(train=sources[task]), CPU)
    spec = change(small(recipe.model))
    home = tmp_path_factory.getbasetemp() / "ids"
    recipe = replace(
        recipe,
        model=spec,
        tokenizing=Tokenizing(kind="bpe", size=300),
        batching=replace(recipe.batching, tokens=256, context=32),
        budget=Budget(steps=2),
        checkpointing=Checkpointing(log=5, evaluate=5, score_records=0, samples=0),
    )
    losses = steps_of(recipe, home)
    assert all(0 < loss < 20 for loss in losses)


def steps_of(recipe, home):
    """The losses of two steps, without a run folder."""
    work = work_on(recipe, home)
    train_state = TrainState(work.spec.build().train(), work.task, recipe.optimizer, resolve_machine(recipe.machine))
    batches = BatchStream(work.recipe, work.task, work.prepared.train, filled=False).batches(0)
    losses = []
    for _ in range(2):
        train_state.step([next(batches)], 1e-3)
        total = train_state.totals()
        losses.append(total.nll / total.places)
        assert train_state.is_finite()
    return losses


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: with_attention(spec, "hard"), "attention: there is no 'hard'; there are softmax, argmax"),
        (lambda spec: with_position(spec, "gps", 5), "position: there is no 'gps'; there are sinusoidal, learned"),
    ],
)
def test_a_name_that_is_none(change, message):
    with pytest.raises(OptionError, match=message):
        change(decoder(Size(1, 16, 2, 2, 32), 32, 0.0))


def test_changes_reach_every_block_and_every_slot():
    spec = presets.classic(64, size=Size(2, 16, 2, 2, 32), dropout=0.1)
    changed = with_dropout(with_position(with_attention(spec, "cosine"), "rotary", 32), 0.7)
    blocks = [*changed.encoder.blocks, *changed.decoder.blocks]
    slots = [slot for block in blocks for slot in (block.attention, block.cross) if slot is not None]
    assert len(slots) == 6
    assert {type(slot.similarity) for slot in slots} == {type(ATTENTIONS["cosine"].similarity)}
    assert {block.dropout for block in blocks} == {0.7}
    assert {side.embedding.dropout for side in (changed.encoder, changed.decoder)} == {0.7}
    assert {side.embedding.position for side in (changed.encoder, changed.decoder)} == {None}
    assert all(block.attention.position is not None for block in blocks)
    assert all(block.cross is None or block.cross.position is None for block in blocks)
    assert with_position(with_position(spec, "none", 32), "sinusoidal", 32) == with_position(spec, "sinusoidal", 32)
