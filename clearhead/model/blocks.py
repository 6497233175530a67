"""Blocks: attention, cross-attention and feed-forward in slots, connected as the arrangement says.

With activation checkpointing a block's activations are computed again in the backward pass instead of being kept.
Buffers that it updates in its forward pass, such as the running mean of a user's own part, are updated once: the second
pass sees them as the first one did, and its own updates are dropped.

An attention slot takes its keys and values from the sequence itself (`FromSelf`), from the encoder's output
(`FromMemory`), or in decoding from a KV cache. The blocks are the same whichever it is.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from clearhead.attention import modes, request
from clearhead.attention.heads import HeadLayout, Heads
from clearhead.attention.layer import Attention
from clearhead.attention.mask_rules import Mask
from clearhead.attention.positions import Position
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Weighting
from clearhead.calls import CodeRepr, public
from clearhead.errors import OptionError
from clearhead.model.arrangements import Arrangement, BranchConnection, PreNorm
from clearhead.model.fast_step import FastStep, fast_step_of, has_own_step
from clearhead.model.feedforward import FeedForward, Network
from clearhead.taps import Tapped


class KVSource(ABC):
    """Runs an attention layer on some vectors, and says where its keys and values come from."""

    @abstractmethod
    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        """Return the layer's output for these vectors."""

    def fast_step(self, layer: Attention) -> FastStep:
        """Return the layer as a function of one new position of every row: by default a call of `self`."""
        return lambda x: self(layer, x.unsqueeze(1)).squeeze(1)


class KVSources(NamedTuple):
    """The sources of one block: of its self-attention, and of its cross-attention."""

    attention: KVSource
    cross: KVSource | None = None


# Compared by identity, since torch 2.11's compiler hashes such an object before its fields are set.
@dataclass(frozen=True, eq=False)
class FromSelf(KVSource):
    """Keys and values of the sequence itself; `mask` beside the layer's own, positions from 0 unless given.

    With a `split` the vectors are this process's part of the sequence.
    """

    mask: Mask | None = None
    positions: Tensor | None = None
    split: SequenceSplit | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        positions, split = self.positions, {} if self.split is None else {"split": self.split}
        return layer(x, mask=self.mask, query_positions=positions, key_positions=positions, **split)


@dataclass(frozen=True, eq=False)
class FromMemory(KVSource):
    """Keys and values of `memory`, the encoder's output. Both sequences count their positions from 0."""

    memory: Tensor
    mask: Mask | None = None
    positions: Tensor | None = None

    def __call__(self, layer: Attention, x: Tensor) -> Tensor:
        if not layer.uses_positions:
            return layer(x, self.memory, mask=self.mask)
        n_query, n_key = x.shape[-2], self.memory.shape[-2]
        every = torch.arange(max(n_query, n_key), device=x.device)
        positions = every[:n_query] if self.positions is None else self.positions
        return layer(x, self.memory, mask=self.mask, query_positions=positions, key_positions=every[:n_key])


class BufferBefore(NamedTuple):
    """A buffer of a module, its version, and a copy of its values before a forward pass."""

    owner: nn.Module
    name: str
    tensor: Tensor
    version: int
    values: Tensor

    def has_changed(self) -> bool:
        """Return whether another tensor has its place, or it was written to."""
        tensor = self.owner._buffers[self.name]  # pyright: ignore[reportPrivateUsage]
        return tensor is not self.tensor or self.tensor._version != self.version


def checkpoint_module(module: nn.Module, *inputs: Any) -> Any:
    """Return what the module computes of its inputs, keeping for the backward pass only those."""
    if torch.compiler.is_compiling():
        # Compiled, the second pass would see the updates of the first: other activations, and wrong gradients. Contexts
        # cannot be compiled, so nothing is computed twice.
        has_buffers = next(module.buffers(), None) is not None
        return module(*inputs) if has_buffers else checkpoint(module, *inputs, use_reentrant=False)
    weights: dict[str, Tensor] = dict(module.named_parameters())
    # Weights that `functional_call` has put in, such as rounded ones, are gone by the time of the second pass.
    replaced = any(not isinstance(weight, nn.Parameter) for weight in weights.values())
    run = (lambda *again: functional_call(module, weights, again)) if replaced else module
    before = copy_buffers(module)
    if not before:
        return checkpoint(run, *inputs, use_reentrant=False)
    contexts = contextlib.nullcontext(), BuffersAsBefore(before)
    output = checkpoint(run, *inputs, use_reentrant=False, context_fn=lambda: contexts)
    # Tables that nothing writes to need no copy for the second pass.
    before[:] = [one for one in before if one.has_changed()]
    return output


def copy_buffers(module: nn.Module) -> list[BufferBefore]:
    return [
        BufferBefore(owner, name, tensor, tensor._version, tensor.clone())
        for owner in module.modules()
        for name, tensor in owner.named_buffers(recurse=False)
    ]


class BuffersAsBefore:
    """A context, to be entered any number of times, in which buffers are copies with the values of then."""

    def __init__(self, before: list[BufferBefore]) -> None:
        self.before = before
        self.now: list[Tensor | None] = []

    def __enter__(self) -> None:
        self.now = [one.owner._buffers[one.name] for one in self.before]  # pyright: ignore[reportPrivateUsage]
        for one in self.before:
            one.owner._buffers[one.name] = one.values.clone()  # pyright: ignore[reportPrivateUsage]

    def __exit__(self, *failed: object) -> None:
        for one, tensor in zip(self.before, self.now, strict=True):
            one.owner._buffers[one.name] = tensor  # pyright: ignore[reportPrivateUsage]


Vectors = Float[Tensor, "batch n d_model"]


@final
@public
@dataclass(frozen=True, kw_only=True)
class AttentionSpec(CodeRepr):
    """Spec of an attention layer: the arguments of `clearhead.Attention` except its width.

    Args:
        heads: A layout of heads, or their number.
        similarity: How a query and a key are compared.
        weighting: How scores become weights.
        position: How positions act on scores.
        mask: The layer's own mask.
        dropout: Share of weights set to 0 in training.
        kernel: Name of a kernel, or `auto`.

    >>> import clearhead as ch
    >>> spec = ch.model.AttentionSpec(heads=4, position=ch.positions.Rotary())
    """

    heads: HeadLayout | int = 8
    similarity: Similarity | None = None
    weighting: Weighting | None = None
    position: Position | None = None
    mask: Mask | None = None
    dropout: float = 0.0
    kernel: str = "auto"

    @property
    def head_layout(self) -> HeadLayout:
        """Return the heads; a bare number stands for that many which see the whole input."""
        return Heads(self.heads) if isinstance(self.heads, int) else self.heads

    def build(self, d_model: int, mask: Mask | None = None) -> Attention:
        """Return the layer; `mask` is what its place in the model asks for, combined with its own."""
        layer_masks = [part for part in (mask, self.mask) if part is not None]
        layer = Attention(
            d_model,
            heads=self.heads,
            similarity=self.similarity,
            weighting=self.weighting,
            position=self.position,
            mask=layer_masks[0] & layer_masks[1] if len(layer_masks) > 1 else (*layer_masks, None)[0],
            dropout=self.dropout,
            kernel=self.kernel,
        )
        if layer.d_out != d_model:
            raise OptionError(
                f"in a block attention must give back d_model = {d_model} numbers, and these heads give {layer.d_out}: "
                f"{self.heads}; keep W_O (output=True), or choose d_value = d_model / count"
            )
        return layer


@final
@public
@dataclass(frozen=True, kw_only=True)
class BlockSpec(CodeRepr):
    """One block: attention and, if given, cross-attention and feed-forward.

    Args:
        attention: Self-attention.
        cross: Cross-attention; None for a block without.
        feed_forward: The feed-forward network; None for a block without.
        arrangement: Where norms and residuals are.
        dropout: Dropout of each branch.

    >>> from clearhead.model import AttentionSpec, BlockSpec, ReLU
    >>> block = BlockSpec(attention=AttentionSpec(heads=2), feed_forward=ReLU(32))
    """

    attention: AttentionSpec
    cross: AttentionSpec | None = None
    feed_forward: FeedForward | None
    arrangement: Arrangement = PreNorm()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        request.check_dropout(self.dropout)
        self.arrangement.check(feed_forward=self.feed_forward is not None)

    @property
    def n_branches(self) -> int:
        return 1 + (self.cross is not None) + (self.feed_forward is not None)


class Block(Tapped):
    """A built block. `gain` multiplies the last map of each branch at the start."""

    def __init__(self, spec: BlockSpec, d_model: int, *, mask: Mask | None = None, gain: float = 1.0) -> None:
        super().__init__()
        self.attention = spec.attention.build(d_model, mask)
        self.around_attention = self.around("attention", spec, d_model)
        self.cross: Attention | None = None
        self.feed_forward: Network | None = None
        if spec.cross is not None:
            self.cross = spec.cross.build(d_model)
            self.around_cross = self.around("cross", spec, d_model)
        if spec.feed_forward is not None:
            self.feed_forward = spec.feed_forward.build(d_model)
            self.around_feed_forward = self.around("feed_forward", spec, d_model)
            spec.arrangement.share_norms(self.around_attention, self.around_feed_forward)
        self.start(gain)

    def around(self, branch: str, spec: BlockSpec, d_model: int) -> BranchConnection:
        return spec.arrangement.around(branch, d_model, spec.dropout)

    @torch.no_grad()
    def start(self, gain: float) -> None:
        self.attention.last.mul_(gain)
        if self.cross is not None:
            self.cross.last.mul_(gain)
        if self.feed_forward is not None:
            self.feed_forward.down.weight.mul_(gain)

    def forward(self, x: Vectors, sources: KVSources) -> Vectors:
        block_input = x
        x = self.around_attention(x, lambda inner: sources.attention(self.attention, inner))
        if self.cross is not None:
            cross, source = self.cross, cross_source(sources)
            x = self.around_cross(x, lambda inner: source(cross, inner))
        if self.feed_forward is not None:
            around = self.around_feed_forward
            x = around(x, self.feed_forward, *((block_input,) if around.reads_input else ()))
        return self.tap("out", x)

    def fast_step(self, sources: KVSources) -> FastStep:
        """Return the block as a function of one new position of every row."""
        branches = [connect(self.around_attention, sources.attention.fast_step(self.attention))]
        if self.cross is not None:
            branches.append(connect(self.around_cross, cross_source(sources).fast_step(self.cross)))
        if self.feed_forward is None:
            return compose(branches)
        network, around = fast_step_of(self.feed_forward), self.around_feed_forward
        if not around.reads_input:
            return compose([*branches, connect(around, network)])
        before = compose(branches)

        def run(x: Tensor) -> Tensor:
            after = before(x).unsqueeze(1)
            return around(after, lambda inner: network(inner.squeeze(1)).unsqueeze(1), x.unsqueeze(1)).squeeze(1)

        return run


def connect(around: BranchConnection, branch: FastStep) -> FastStep:
    """Return the branch within its connection; one that changes `forward` alone is called."""
    return around.fast_step(branch) if has_own_step(around) else BranchConnection.fast_step(around, branch)


def call_block(block: nn.Module, sources: KVSources) -> FastStep:
    """Return a function that calls a module in a block's place (a wrapped or compiled one) with one position."""
    return lambda x: block(x.unsqueeze(1), sources).squeeze(1)


def compose(steps: Sequence[FastStep]) -> FastStep:
    """Return one function that applies the steps in order."""

    def run(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return run


def cross_source(sources: KVSources) -> KVSource:
    if sources.cross is None:
        raise OptionError("this decoder has cross-attention and was given nothing to attend to: pass memory=")
    return sources.cross


def share_positions(blocks: Iterable[Block], specs: Sequence[BlockSpec]) -> None:
    """Let all blocks with an equal shared position use that of the first such block."""
    first: dict[Position, Position] = {}
    for block, spec in zip(blocks, specs, strict=True):
        position = spec.attention.position
        if position is not None and position.shared:
            block.attention.position = first.setdefault(position, block.attention.position)


class Stack(Tapped):
    """Blocks one after another, and the norm that pre-norm ends with. The blocks may differ.

    `checkpointing = True` keeps only the inputs of the blocks, and computes the rest again in the backward pass.
    """

    def __init__(
        self, specs: Sequence[BlockSpec], d_model: int, *, mask: Mask | None = None, stream: float = 1.0
    ) -> None:
        super().__init__()
        if not specs:
            raise OptionError("a stack needs at least one block")
        n_branches = sum(spec.n_branches for spec in specs)
        self.blocks: Sequence[Block] = nn.ModuleList(  # pyright: ignore[reportAttributeAccessIssue]
            Block(spec, d_model, mask=mask, gain=spec.arrangement.gain(n_branches, stream)) for spec in specs
        )
        share_positions(self.blocks, specs)
        self.norm = specs[-1].arrangement.final(d_model)
        self.checkpointing = False

    def extra_repr(self) -> str:
        return "checkpointing=True" if self.checkpointing else ""

    def forward(self, x: Vectors, kv_sources: Sequence[KVSources]) -> Vectors:
        recompute = (
            self.checkpointing and torch.is_grad_enabled() and not modes.under_torch_func()
        )  # torch.func has no checkpoints
        for block, sources in zip(self.blocks, kv_sources, strict=True):
            x = checkpoint_module(block, x, sources) if recompute else block(x, sources)
        return x if self.norm is None else self.tap("normed", self.norm(x))

    def fast_step(self, kv_sources: Sequence[KVSources]) -> FastStep:
        """Return the blocks and the last norm as a function of one new position of every row."""
        steps = [
            block.fast_step(sources) if has_own_step(block) else call_block(block, sources)
            for block, sources in zip(self.blocks, kv_sources, strict=True)
        ]
        if self.norm is not None:
            steps.append(fast_step_of(self.norm))
        return compose(steps)
