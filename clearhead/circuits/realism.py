"""Axes of realism: compiled programs made more like trained models, one property at a time.

Each axis gives another model that computes the same program. It counts only where every input still has its answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.attention.heads import Heads
from clearhead.attention.weighting import Argmax, Softmax, Weighting
from clearhead.circuits.forward import run_graph
from clearhead.circuits.graph import Graph
from clearhead.circuits.patching import ZeroSource
from clearhead.circuits.truth import NEAR, BenchSample, every_input, find_truth
from clearhead.model import AttentionSpec, BlockSpec, PreNorm, RMSNorm
from clearhead.rasp.compiled_model import CompiledModel

Axis = Callable[[BenchSample, torch.Generator], BenchSample | None]
SHARP = 10.0
"""The sharpness of softmax on the other axes."""
LOUD = 1000.0
"""The size of the constant direction that keeps live norms nearly still."""
MOST_PAIRS = 256
"""Pairs of texts of each length by which an edge is tried where truth is found anew."""
DECOYS = 2
"""Heads in each attention, and four times as many units in each network, that nobody reads."""


@dataclass(frozen=True, kw_only=True)
class Remap:
    """How a compiled model is written anew: a feature f becomes `f @ write`, and is read back by `read`."""

    write: Tensor
    read: Tensor
    decoys: int = 0
    loud: float = 0.0
    """With it the last direction is a constant of that size, and live norms stand before every branch."""


def with_weighting(sample: BenchSample, weighting: Weighting, sharpness: float) -> BenchSample:
    """Return the same program compiled with another weighting; its edges and its truth are those of the exact one."""
    compiled = sample.program.compile(weighting=weighting, sharpness=sharpness)
    return replace(sample, compiled=compiled, graph=Graph(compiled.model))


def exact(sample: BenchSample, generator: torch.Generator) -> BenchSample:
    return sample


def exact_without_gradient(sample: BenchSample, generator: torch.Generator) -> BenchSample:
    return with_weighting(sample, Argmax(ties="average", gradient="none"), 1.0)


def constants(sample: BenchSample, generator: torch.Generator) -> BenchSample:
    """Return the exact model, and of its edges those that carry constants alone, under zero ablation."""
    return replace(sample, truth=sample.truth.of_constants(), source=ZeroSource())


def softmax(sharpness: float) -> Axis:
    return lambda sample, generator: keeping(with_weighting(sample, Softmax(), sharpness))


def rotated(sample: BenchSample, generator: torch.Generator) -> BenchSample | None:
    """Return the model with its residual stream in a random rotation, in float64."""
    soft = with_weighting(sample, Softmax(), SHARP)
    d = len(soft.compiled.directions)
    turn, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return keeping(remapped(soft, Remap(write=turn, read=turn.T), generator))


def decoys(sample: BenchSample, generator: torch.Generator) -> BenchSample | None:
    """Return the model with heads and units that read what is used, and write what nobody reads."""
    soft = with_weighting(sample, Softmax(), SHARP)
    d = len(soft.compiled.directions)
    write = torch.eye(d, d + DECOYS, dtype=torch.float64)
    remap = Remap(write=write, read=write.T, decoys=DECOYS)
    changed = keeping(remapped(soft, remap, generator))
    return None if changed is None else with_truth(changed, remap)


def disguised(sample: BenchSample, generator: torch.Generator) -> BenchSample | None:
    """Return the model with decoys, and all of it in a random rotation."""
    changed = decoys(sample, generator)
    if changed is None:
        return None
    d = changed.compiled.model.stacks[0].spec.d_model
    turn, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return keeping(remapped(changed, Remap(write=turn, read=turn.T), generator))


def superposed(sample: BenchSample, generator: torch.Generator) -> BenchSample | None:
    """Return the model with more features than dimensions: as many as what senders send spans, in a random rotation.

    Features of a compiled program depend on each other (those of one variable add up to 1), so its vectors span fewer
    dimensions than it has features. Each feature is then a direction that is orthogonal to few others, and every text
    still has its answer; a map with fewer dimensions than that loses one.
    """
    soft = with_weighting(sample, Softmax(), SHARP)
    span = spanned(soft)
    if span.shape[1] == len(span):
        return None
    turn, _ = torch.linalg.qr(torch.randn(span.shape[1], span.shape[1], generator=generator, dtype=torch.float64))
    remap = Remap(write=span @ turn, read=(span @ turn).T)
    changed = keeping(remapped(soft, remap, generator))
    return None if changed is None else with_truth(changed, remap)


def spanned(sample: BenchSample) -> Tensor:
    """Return an orthonormal basis, `(feature, dimension)`, of all that senders send in any text."""
    found = []
    for batch in every_input(sample.program, sample.compiled):
        run = run_graph(sample.graph, batch.texts, keep=True)
        found += [torch.unique(vector.flatten(0, -2).double(), dim=0) for vector in run.vectors.values()]
    _, sizes, basis = torch.linalg.svd(torch.unique(torch.cat(found), dim=0), full_matrices=False)
    return basis[sizes > NEAR * sizes[0]].T


def normed(sample: BenchSample, generator: torch.Generator) -> BenchSample | None:
    """Return the model with live RMSNorms before every branch and at the end."""
    soft = with_weighting(sample, Softmax(), SHARP)
    d = len(soft.compiled.directions)
    write = torch.eye(d, d + 1, dtype=torch.float64)
    return keeping(remapped(soft, Remap(write=write, read=write.T, loud=LOUD), generator))


AXES: Mapping[str, Axis] = {
    "argmax": exact,
    "argmax, no gradient": exact_without_gradient,
    "constants": constants,
    "softmax 10": softmax(10.0),
    "softmax 5": softmax(5.0),
    "softmax 3": softmax(3.0),
    "rotated": rotated,
    "decoys": decoys,
    "superposed": superposed,
    "live norms": normed,
}
"""By name, from the exact compile on."""
MAIN = ("argmax", "argmax, no gradient", "constants", "softmax 10")
"""Axes that all programs are graded on; the others take time, and are graded on some."""


def keeping(sample: BenchSample) -> BenchSample | None:
    """Return the sample if its model still gives every answer; else None."""
    return sample if sample.keeps_answers() else None


def with_truth(sample: BenchSample, remap: Remap) -> BenchSample:
    """Return the sample with its truth found anew, for its own model: on drawn pairs, since all values differ there."""
    graph, program, compiled = sample.graph, sample.program, sample.compiled
    truth = find_truth(graph, program, compiled, turn=remap.read, most_pairs=MOST_PAIRS, joint_pairs=0)
    return replace(sample, truth=truth)


@torch.no_grad()
def remapped(sample: BenchSample, remap: Remap, generator: torch.Generator) -> BenchSample:
    """Return the sample with its model written anew."""
    old = sample.compiled
    spec = old.model.spec.map_stacks(lambda stack: change_stack(stack, remap))
    model = spec.build().double().eval()
    for parameter in model.parameters():
        parameter.zero_()
    for before, after in zip(old.model.stacks, model.stacks, strict=True):
        write_stack(before, after, remap, generator)
    fields = {name: getattr(old, name) for name in ("ids", "vocabulary", "answers", "numeric", "length", "layouts")}
    compiled = CompiledModel(model=model, directions=old.directions, **fields)
    return replace(sample, compiled=compiled, graph=Graph(model))


def change_stack(stack: Any, remap: Remap) -> Any:
    blocks = tuple(change_block(block, remap) for block in stack.blocks)
    return replace(stack, d_model=remap.write.shape[1], blocks=blocks)


def change_block(block: BlockSpec, remap: Remap) -> BlockSpec:
    def attention(spec: AttentionSpec) -> AttentionSpec:
        heads = spec.head_layout
        assert isinstance(heads, Heads)
        return replace(spec, heads=replace(heads, count=heads.count + remap.decoys))

    network = block.feed_forward
    return replace(
        block,
        attention=attention(block.attention),
        cross=None if block.cross is None else attention(block.cross),
        feed_forward=None if network is None else replace(network, d_ff=network.d_ff + 4 * remap.decoys),
        arrangement=PreNorm(RMSNorm(epsilon=0.0)) if remap.loud else block.arrangement,
    )


def write_stack(before: Any, after: Any, remap: Remap, generator: torch.Generator) -> None:
    write, read = remap.write, remap.read
    after.embedding.table.copy_(before.embedding.table.double() @ write)
    if remap.loud:
        after.embedding.table[:, -1] = remap.loud
    after.embedding.position.table.copy_(before.embedding.position.table.double() @ write)
    if before.output is not None:
        after.output.table.copy_(before.output.table.double() @ read.T)
    for old, new in zip(before.stack.blocks, after.stack.blocks, strict=True):
        for branch in ("attention", "cross"):
            if getattr(old, branch) is not None:
                write_attention(getattr(old, branch), getattr(new, branch), remap, generator)
        if old.feed_forward is not None:
            units = old.feed_forward.up.weight.shape[0]
            new.feed_forward.up.weight[:units] = old.feed_forward.up.weight.double() @ read.T
            new.feed_forward.down.weight[:, :units] = write.T @ old.feed_forward.down.weight.double()
            if remap.decoys:
                random = torch.randn(4 * remap.decoys, len(write), generator=generator, dtype=torch.float64)
                new.feed_forward.up.weight[units:] = random @ read.T
                new.feed_forward.down.weight[-remap.decoys :, units:] = 1.0
    if remap.loud:
        for name, parameter in after.named_parameters():
            if name.endswith("norm.gamma"):
                parameter.fill_(remap.loud / write.shape[1] ** 0.5)


def write_attention(old: Any, new: Any, remap: Remap, generator: torch.Generator) -> None:
    heads = old.shape.n_heads
    for role in ("query", "key", "value"):
        before = getattr(old, role).linear.weight.double().unflatten(0, (heads, -1))
        after = getattr(new, role).linear.weight.unflatten(0, (heads + remap.decoys, -1))
        after[:heads] = before @ remap.read.T
        if remap.decoys:
            shape = (remap.decoys, *before.shape[1:])
            after[heads:] = torch.randn(shape, generator=generator, dtype=torch.float64) @ remap.read.T
    before = old.output.weight.double().unflatten(1, (heads, -1))
    after = new.output.weight.unflatten(1, (heads + remap.decoys, -1))
    after[:, :heads] = torch.einsum("df,dhw->fhw", remap.write, before)
    for number in range(remap.decoys):
        after[len(remap.write) + number, heads + number] = 1.0
