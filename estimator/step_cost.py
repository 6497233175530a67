"""What one pass of a training step costs in memory: counted by running it on tensors that have shapes and no numbers.

torch's FakeTensorMode runs the real model, loss and backward without data, so any size of model takes a second or two.
A block that occurs several times is run twice: a deeper model adds for each further one what the second added.

What is counted is an eager step as on a GPU, where numbers cannot be read to take a shorter way, as they are on a CPU.
Attention with dropout is fused there and keeps no weights, while the CPU's kernel would: so that dropout is left out. A
compiled step keeps less than is counted here.
"""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from clearhead.model.blocks import AttentionSpec, Block, BlockSpec, Stack
from clearhead.model.sizes import Spec
from clearhead.training.losses import cross_entropy

Arithmetic = Literal["float32", "rounded", "autocast", "bfloat16"]
"""How a pass computes. `rounded`: with bfloat16 copies of float32 weights, as `clearhead train` does; `bfloat16`: with
weights that come in bfloat16, as FSDP gathers them.
"""

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "attention", "convolution")
"""Operations whose time follows from their FLOPs, and not from the bytes they move."""
FREE = ("empty", "new_empty", "_unsafe_view", "detach", "alias")
"""Operations that move nothing, beside views."""

ROUNDING = 24
"""Bytes moved for each weight that is rounded: it is read and its copy written, the copy's gradient read and written in
float32, and added to the weight's.
"""


class PassCost(NamedTuple):
    """Bytes of one pass over a micro-batch, forward and backward; those of parameters and gradients are not in it."""

    activations: int
    """What the blocks keep for the backward pass, when the last of them is done."""
    peak: int
    """The most that lives at any time: activations, logits, their gradients, what an operation needs meanwhile."""
    traffic: int
    """What operations other than matrix products read and write."""
    copies: int
    """The weights rounded to bfloat16, which live through the whole pass; they are not in the others."""


@final
class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that operations make, from when they are made until they are freed.

    `known` tensors are not counted. `now` is what lives, `most` the most so far, `traffic` what was read and written by
    operations that are not matrix products.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.most = self.traffic = 0
        self.seen = WeakIdKeyDictionary()
        for tensor in known:
            self.seen[tensor.untyped_storage()] = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for tensor in outputs:
            self.add(tensor.untyped_storage())
        if outputs and not is_free(func):
            read = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            self.traffic += sum(tensor.numel() * tensor.element_size() for tensor in (*read.values(), *outputs))
        return result

    def add(self, storage: torch.UntypedStorage) -> None:
        if storage not in self.seen:
            self.seen[storage] = True
            size = storage.nbytes()
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.free, size)

    def free(self, size: int) -> None:
        self.now -= size


def is_free(func: Any) -> bool:
    """Return whether an operation's bytes take no time of their own: views, empty tensors and matrix products."""
    name = func._schema.name.partition("::")[2].split(".")[0]
    views = any(out.alias_info is not None and not out.alias_info.is_write for out in func._schema.returns)
    return views or name.startswith(FREE) or any(word in name for word in PRODUCTS)


def measure_pass(
    spec: Spec, *, batch: int, source: int, target: int, arithmetic: Arithmetic, checkpointing: bool = False
) -> PassCost:
    """Return the bytes of a pass over `batch` sequences of these lengths, with the loss as `clearhead train` has it."""
    return measure_passes(
        spec, batches=(batch,), source=source, target=target, arithmetic=arithmetic, checkpointing=checkpointing
    )[0]


def measure_passes(
    spec: Spec,
    *,
    batches: Sequence[int],
    source: int,
    target: int,
    arithmetic: Arithmetic,
    checkpointing: bool = False,
) -> list[PassCost]:
    """Return what `measure_pass` does, for several numbers of sequences."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # it imports torch._dynamo, which takes two seconds

    spec = without_attention_dropout(spec)
    kinds = [distinct_blocks(stack.blocks) for stack in spec.stacks]
    short = [tuple(block for block, count in stack for _ in range(min(count, 2))) for stack in kinds]
    # Of each kind of block, how many more there are than in the short model.
    missing = [count - 2 if twice else 0 for stack in kinds for _, count in stack for twice in range(min(count, 2))]
    with FakeTensorMode(), torch.random.fork_rng(devices=[]):
        model = with_blocks(spec, short).build().train()
        if arithmetic == "bfloat16":
            use_bfloat16(model)
        return [
            run_pass(
                model,
                *example_inputs(spec, batch, source, target),
                missing=missing,
                arithmetic=arithmetic,
                checkpointing=checkpointing,
            )
            for batch in batches
        ]


def use_bfloat16(model: nn.Module) -> None:
    """Replace the parameters by bfloat16 ones, shared where they were: `model.bfloat16()` cannot without data."""
    narrow_parameters: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                narrow = narrow_parameters.setdefault(
                    id(parameter), nn.Parameter(parameter.detach().bfloat16(), requires_grad=parameter.requires_grad)
                )
                module._parameters[name] = narrow


@final
class BlockMarks:
    """What lives, and what was moved so far, when a block ends its forward and when it begins its backward pass."""

    def __init__(self, live: LiveBytes) -> None:
        self.live = live
        self.now = self.forward = self.backward = -1

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self.now < 0:  # with checkpointing, blocks run a second time
            self.now, self.forward = self.live.now, self.live.traffic
            output.register_hook(self.begin_backward)

    def begin_backward(self, grad: Tensor) -> None:
        self.backward = self.live.traffic


def run_pass(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    lengths: dict[str, Tensor],
    *,
    missing: Sequence[int],
    arithmetic: Arithmetic,
    checkpointing: bool,
) -> PassCost:
    """Run a pass as `clearhead train` does, gradients held from before, and return what it takes in bytes.

    `missing` says for each block how many more like it the model has that is meant: each of these adds what this block
    added to the one before it.
    """
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        stack.checkpointing = checkpointing
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    persistent = [
        *model.parameters(),
        *model.buffers(),
        *(parameter.grad for parameter in model.parameters() if parameter.grad is not None),
    ]
    live = LiveBytes([*persistent, *inputs, *lengths.values()])
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    marks = [BlockMarks(live) for _ in blocks]
    hooks = [block.register_forward_hook(mark) for block, mark in zip(blocks, marks, strict=True)]
    rounded: dict[str, Tensor] = {}
    with live, torch.autocast("cpu", torch.bfloat16, enabled=arithmetic == "autocast"):
        if arithmetic == "rounded":
            rounded = {name: parameter.to(torch.bfloat16) for name, parameter in model.named_parameters()}
        copies = live.now
        loss_of(model, rounded, inputs, lengths).backward()
    for hook in hooks:
        hook.remove()
    extra_kept, moved, deeper = 0, 0, 0
    for number, more in enumerate(missing):
        before, mark = marks[number - 1], marks[number]
        if more:
            extra_kept += more * (mark.now - before.now)
            moved += more * (mark.forward - before.forward + before.backward - mark.backward)
            deeper += more * sum(parameter.numel() for parameter in blocks[number].parameters())
    return PassCost(
        activations=marks[-1].now - copies + extra_kept,
        peak=live.most - copies + extra_kept,
        traffic=live.traffic + moved + (ROUNDING * deeper if rounded else 0),
        copies=copies + (2 * deeper if rounded else 0),
    )


def loss_of(
    model: nn.Module, weights: dict[str, Tensor], inputs: tuple[Tensor, ...], lengths: dict[str, Tensor]
) -> Tensor:
    """Return the loss of a pass with these weights. It is a function of its own so that the logits are freed after."""
    logits = functional_call(model, weights, inputs, lengths)
    targets = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    return cross_entropy(logits.flatten(0, -2), targets.flatten()).objective


def example_inputs(spec: Spec, batch: int, source: int, target: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return token ids, and the lengths that a batch of training has where rows are padded."""

    def ids(n: int) -> Tensor:
        return torch.zeros(batch, n, dtype=torch.int64)

    if spec.encoder is None:
        return (ids(target),), {}
    lengths = torch.full((batch,), source)
    if spec.decoder is None:
        return (ids(source),), {"lengths": lengths}
    return (ids(source), ids(target)), {"source_lengths": lengths}


def with_blocks(spec: Spec, blocks: Sequence[tuple[BlockSpec, ...]]) -> Spec:
    """Return the model with other blocks in each of its stacks."""
    following = iter(blocks)
    return spec.map_stacks(lambda stack: replace(stack, blocks=next(following)))


def distinct_blocks(blocks: Iterable[BlockSpec]) -> list[tuple[BlockSpec, int]]:
    """Return each block that differs from those before it, and how often it occurs."""
    distinct: list[tuple[BlockSpec, int]] = []
    for block in blocks:
        indices = [index for index, (earlier, _) in enumerate(distinct) if earlier == block]
        if indices:
            distinct[indices[0]] = (block, distinct[indices[0]][1] + 1)
        else:
            distinct.append((block, 1))
    return distinct


def without_attention_dropout(spec: Spec) -> Spec:
    def changed(blocks: Iterable[BlockSpec]) -> Iterator[BlockSpec]:
        for block in blocks:
            cross = None if block.cross is None else quiet(block.cross)
            yield replace(block, attention=quiet(block.attention), cross=cross)

    return with_blocks(spec, [tuple(changed(stack.blocks)) for stack in spec.stacks])


def quiet(slot: AttentionSpec) -> AttentionSpec:
    return replace(slot, dropout=0.0)
