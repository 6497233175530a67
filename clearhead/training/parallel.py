"""How a model is trained by several processes: whole in each (DDP), or in shards (FSDP2). The arithmetic is one's own.

Every process reads the whole batch of a step, which depends on the seed and the step alone, and takes its share of the
rows. Gradients are divided by the targets of the whole batch, and added up: so the steps are those of one process, for
any number of them. A process without a row takes part with one that asks for nothing.

With a context of several processes, each group of them has the same rows, and each process in it its places of every
sequence. Weights, gradients and shards are those of all processes together, whichever rows and places they have.

With `tensor`, neighbouring processes have the same rows and places, and each a part of the heads and of the hidden
numbers of every layer (`tensor_parallel`). Weights are then sharded over the processes with the same part.
"""

import contextlib
import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clearhead.devices import takes_foreach
from clearhead.errors import OptionError
from clearhead.model.blocks import Stack
from clearhead.model.sizes import Bounded, Spec, TooManyNumbers, build_for_shapes
from clearhead.model.transformers import Transformer
from clearhead.system import machine_memory
from clearhead.training.checkpoints import copy_into, named_tensors
from clearhead.training.distributed import Processes
from clearhead.training.losses import NOTHING
from clearhead.training.optimizers import split_by_mesh
from clearhead.training.recipe import ParallelLayout, Recipe, read_parallel
from clearhead.training.schedules import Unaveraged
from clearhead.training.tasks.learning import Batch
from clearhead.training.tensor_parallel import check_divisible, divide_layers

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

MESH = ("shards", "layers")
"""The axes of the mesh of processes: those that shard the same weights, and those that divide the same layers."""
Forward = Callable[..., Any]
"""Computes the loss of a batch, and takes what options the pass has."""
ROOM = 0.9
"""The share of a device's memory that weights, gradients and moments can take at all: something computes with them."""
NEAR = 0.25
"""The share of the parameters there is memory for from which a rough count is not relied on."""
FULL = 0.5
"""The share of a device's memory that weights, gradients and moments may take before they are sharded."""


class Parallel(ABC):
    """A way to train with several processes; its methods that communicate are called by all of them."""

    shards = False
    """Whether a process has only a part of every weight."""

    def __init__(self, processes: Processes, layout: ParallelLayout = ParallelLayout()) -> None:
        self.processes, self.layout = processes, layout

    @property
    def part(self) -> int:
        """Return which part of every layer this process has."""
        return self.processes.rank % self.layout.tensor

    @functools.cached_property
    def context_group(self) -> "ProcessGroup | None":
        """Return the processes that this one shares its sequences with; None if it has whole ones.

        It is made by all processes at once, when it is first asked for.
        """
        _, context, tensor = self.layout
        if context == 1:
            return None
        ranks = torch.arange(self.processes.count).view(-1, context, tensor).mT.reshape(-1, context)
        group, _ = dist.new_subgroups_by_enumeration(ranks.tolist())
        assert isinstance(group, dist.ProcessGroup)
        return group

    def shard(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        """Keep only this process's part of the weights; in the forward pass they are whole, and of this dtype."""
        return

    @abstractmethod
    def wrap(self, module: nn.Module) -> Forward:
        """Return what computes the loss of a batch, so that its gradients are added up over the processes."""

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        """Return a context for a micro-batch, whose gradients need not be communicated unless it is the step's last."""
        return contextlib.nullcontext()

    def share(self, batch: Batch) -> Batch:
        """Return this process's rows of a batch: those of the processes that it shares sequences or layers with."""
        same = self.layout.context * self.layout.tensor
        return share_rows(batch, self.processes.rank // same, self.processes.count // same)

    @property
    def scale(self) -> float:
        """Return what a loss is multiplied by, since torch averages gradients over processes, and a sum is needed."""
        return float(self.processes.count // self.layout.tensor)

    def clip(self, parameters: Sequence[nn.Parameter], most: float, device: torch.device) -> Tensor:
        """Clip the gradients by their norm over all processes, and return that."""
        return nn.utils.clip_grad_norm_(parameters, most, foreach=takes_foreach(device))

    def evaluation_model(self, model: Transformer, build: Callable[[], Transformer]) -> Transformer | None:
        """Return the model to score, with whole weights; None in a process that does not score."""
        return model if self.processes.is_first else None


class SingleProcess(Parallel):
    """One process, as if there were no others to think of."""

    def wrap(self, module: nn.Module) -> Forward:
        return module.forward

    def share(self, batch: Batch) -> Batch:
        return batch


class Replicated(Parallel):
    """DDP: each process has all weights, and gradients are added up while the backward pass computes more of them."""

    def __init__(self, processes: Processes, layout: ParallelLayout = ParallelLayout()) -> None:
        super().__init__(processes, layout)
        self.wrapped: nn.parallel.DistributedDataParallel | None = None

    def wrap(self, module: nn.Module) -> Forward:
        """Return the loss under DDP, made at the first batch: it tells whether there are weights without gradient."""

        def forward(batch: Batch) -> Any:
            if self.wrapped is None:
                unused = has_unused(module, batch)
                with warnings.catch_warnings():
                    # Buffers stay as they are. The option has a new name in torch 2.13, and 2.11 knows only this one.
                    warnings.simplefilter("ignore", FutureWarning)
                    self.wrapped = nn.parallel.DistributedDataParallel(
                        module,
                        init_sync=False,
                        broadcast_buffers=False,
                        gradient_as_bucket_view=True,
                        find_unused_parameters=unused,
                    )
            return self.wrapped(batch)

        return forward

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if last or self.wrapped is None else self.wrapped.no_sync()


class Sharded(Parallel):
    """FSDP2: each process has a part of every weight, of its moments and of the average; a block is whole only while
    it computes. What blocks share, and what is tied, stays in one group at the root.
    """

    shards = True

    def __init__(self, processes: Processes, device: torch.device, layout: ParallelLayout = ParallelLayout()) -> None:
        super().__init__(processes, layout)
        self.device_type = device.type

    @functools.cached_property
    def mesh(self) -> "DeviceMesh":
        """Return all processes by what they share: shards of weights, and layers. It is made by all at once."""
        from torch.distributed.device_mesh import init_device_mesh

        tensor = self.layout.tensor
        return init_device_mesh(self.device_type, (self.processes.count // tensor, tensor), mesh_dim_names=MESH)

    def shard(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        if self.layout.tensor > 1:
            divide_layers(module, self.mesh["layers"])
        mesh = self.mesh["shards"]
        policy = MixedPrecisionPolicy() if dtype is None else MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32)
        for block in own_blocks(module):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(module, mesh=mesh, mp_policy=policy)

    def wrap(self, module: nn.Module) -> Forward:
        return module.forward

    def clip(self, parameters: Sequence[nn.Parameter], most: float, device: torch.device) -> Tensor:
        foreach, meshes = takes_foreach(device), split_by_mesh(parameters)
        norms: list[Tensor] = []
        for alike in meshes:
            gradients = [one.grad for one in alike if one.grad is not None]
            norms.append(full_tensor(nn.utils.get_total_norm(gradients, foreach=foreach)))
        norm = torch.stack(norms).norm()
        for alike in meshes:
            nn.utils.clip_grads_with_norm_(alike, most, norm, foreach=foreach)
        return norm

    def evaluation_model(self, model: Transformer, build: Callable[[], Transformer]) -> Transformer | None:
        """Gather the weights one after another. Only the first process keeps them, in a model of its own."""
        evaluated = build() if self.processes.is_first else None
        gathered: dict[str, Tensor] = {}
        target = {} if evaluated is None else named_tensors(evaluated)
        for name, tensor in named_tensors(model).items():
            full = full_tensor(tensor)
            if evaluated is not None:
                gathered[name] = full.to("cpu" if target[name].device.type == "cpu" else target[name].device)
        if evaluated is not None:
            copy_into(target, gathered, "the weights to score")
        return evaluated


def share_rows(batch: Batch, rank: int, count: int) -> Batch:
    """Return the rows of one of `count` processes: as equally many as can be, in order; without any, a row that asks
    for nothing.

    >>> share_rows({"wanted": torch.tensor([[1], [2], [3]])}, 0, 2)["wanted"].tolist()
    [[1], [2]]
    >>> share_rows({"wanted": torch.tensor([[1]])}, 1, 2)["wanted"].tolist()
    [[-100]]
    """
    shard = {name: tensor.tensor_split(count)[rank] for name, tensor in batch.items()}
    if len(shard["wanted"]):
        return shard
    row = {name: tensor[:1] for name, tensor in batch.items()}
    return {**row, "wanted": torch.full_like(row["wanted"], NOTHING)}


def has_unused(module: nn.Module, batch: Batch) -> bool:
    """Return whether a weight gets no gradient, by a pass over one row. Nothing else changes, buffers neither."""
    row = {name: tensor[:1] for name, tensor in batch.items()}
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    devices = {parameter.device for parameter in trained if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices):
        loss = module(row)
        gradients = torch.autograd.grad(loss.objective, trained, allow_unused=True)
    for buffer, before in buffers:
        buffer.copy_(before)
    return any(gradient is None for gradient in gradients)


def own_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks whose weights are used nowhere else: each is a group of its own. Tied weights must not be
    split over groups.
    """
    owners: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), set()).add(name)
    blocks: list[nn.Module] = []
    for prefix, stack in module.named_modules():
        if isinstance(stack, Stack):
            for i, block in enumerate(stack.blocks):
                inside = f"{prefix}.blocks.{i}.".removeprefix(".")
                if all(name.startswith(inside) for parameter in block.parameters() for name in owners[id(parameter)]):
                    blocks.append(block)
    return blocks


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor with all of its shards, in every process."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return this process's parts of tensors: the tensors themselves where they are not sharded."""
    # By the method: to import the class takes a while, and one process alone does not need it.
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]  # pyright: ignore


def choose_parallel(recipe: Recipe, processes: Processes, model: nn.Module, device: torch.device) -> Parallel:
    """Return how the processes train together; OptionError if the recipe asks for what that way cannot do."""
    if not processes.together:
        return SingleProcess(processes)
    layout = read_parallel(recipe.machine.parallel)
    if layout.way == "auto":
        layout = layout._replace(way="fsdp" if is_large(recipe, processes, model, device) else "ddp")
    check_layout(recipe, layout, processes.count)
    if layout.way == "fsdp":
        check_axes(model)
    return Sharded(processes, device, layout) if layout.way == "fsdp" else Replicated(processes, layout)


def check_groups(count: int, layout: ParallelLayout) -> None:
    """Raise OptionError where processes cannot be grouped so that each group shares its sequences and layers."""
    same = layout.context * layout.tensor
    if count % same == 0:
        return
    asked = [f"{name}={getattr(layout, name)}" for name in ("context", "tensor") if getattr(layout, name) > 1]
    if count == 1:
        raise OptionError(
            f"parallel: {' and '.join(asked)} takes {same} processes, and one would train alone; start them with "
            f"--processes {same} or torchrun, or leave out {' and '.join(name.partition('=')[0] for name in asked)}"
        )
    raise OptionError(
        f"parallel: {count} processes cannot be grouped by {' and '.join(asked)}; start a multiple of {same}, or "
        "choose numbers that divide them"
    )


def check_layout(recipe: Recipe, layout: ParallelLayout, count: int) -> None:
    """Raise OptionError for what so many processes cannot do with a recipe in this layout."""
    if layout.way == "fsdp":
        check_shardable(recipe)
    if layout.context > 1:
        check_splittable(recipe, recipe.model)
    if layout.tensor > 1:
        check_divisible(recipe, layout.tensor)
    check_groups(count, layout)


def check_splittable(recipe: Recipe, spec: Spec) -> None:
    """Raise OptionError if a sequence of a recipe's model cannot be split over processes."""
    if len(spec.stacks) > 1:
        raise OptionError(
            "parallel: context splits the sequences of an encoder or a decoder, and this model has both; leave out "
            "context"
        )
    (stack,) = spec.stacks
    if stack.output is None or not stack.output.by_position:
        raise OptionError(
            "parallel: context is for models with an answer at every position; this one has an answer for a whole "
            "sequence, which no process holds. Leave out context"
        )
    if stack.embedding.position is not None and stack.embedding.position.skips is not None:
        raise OptionError("parallel: positions that tokens skip are counted over a whole sequence; leave out context")
    if recipe.machine.compile:
        raise OptionError("compile: is not offered with a context of several processes; leave out one of the two")


def check_shardable(recipe: Recipe) -> None:
    """Raise OptionError if a recipe asks for what sharded weights cannot do."""
    if recipe.checkpointing.film:
        raise OptionError("film: weights that are sharded are not filmed; leave out --film, or take --parallel ddp")
    if recipe.optimizer.method == "muon":
        raise OptionError("muon needs whole matrices, and fsdp shards them: take --parallel ddp, or adamw")
    if recipe.machine.compile:
        raise OptionError("compile: is not offered with --parallel fsdp; leave out --compile, or take --parallel ddp")


def check_axes(model: nn.Module) -> None:
    """Raise OptionError if a parameter has no axis to cut: FSDP2 takes no single numbers."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise OptionError(
                f"{name} is a single number, which --parallel fsdp cannot shard: make it a tensor of shape (1,) in its "
                "part, or take --parallel ddp"
            )


def check_together(recipe: Recipe, count: int) -> None:
    """Raise OptionError, before any text is read, for what so many processes cannot do with a recipe."""
    layout = read_parallel(recipe.machine.parallel)
    check_layout(recipe, layout, count)
    if layout.way == "fsdp":
        check_axes(build_for_shapes(recipe.model))


def check_room(recipe: Recipe, processes: Processes) -> None:
    """Raise OptionError if a model of the size asked for cannot be trained by one process in the memory it has.

    The model itself is looked at only where a rough count comes near, and then without memory for its numbers; what
    escapes this, such as a large part of the user's own, is found by `build_model`.
    """
    if processes.together:  # shards may fit
        return
    most = most_parameters(recipe, processes)
    count = recipe.parameters
    if count is None and rough_count(recipe.model) > NEAR * most:
        count = sum(parameter.numel() for parameter in build_for_shapes(recipe.model).parameters())
    if count is not None and count > most:
        raise no_room(recipe, most, f"{count:,}")


def build_model(recipe: Recipe, spec: Spec, processes: Processes) -> Transformer:
    """Build the model of a recipe; OptionError, before the memory is taken, where one process has too little of it."""
    if processes.together:
        return spec.build()
    most = most_parameters(recipe, processes)
    try:
        with Bounded(most):
            return spec.build()
    except TooManyNumbers:
        raise no_room(recipe, most, f"more than {most:,.0f}") from None


def most_parameters(recipe: Recipe, processes: Processes) -> float:
    """Return how many parameters a process has the memory to train; or to hold, where most of them may be frozen."""
    return ROOM * memory_bytes(torch.device(recipe.machine.device), processes) // sum(bytes_each(recipe).values())


def bytes_each(recipe: Recipe) -> dict[str, int]:
    """Return what a parameter takes at least, in float32, by what it is for."""
    tuning = recipe.fine_tuning
    frozen = tuning is not None and bool(tuning.lora or tuning.freeze)
    trained = {} if frozen else {"gradient": 4, "two moments": 8}
    averaged = {} if isinstance(recipe.optimizer.averaging, Unaveraged) else {"average": 4}
    return {"weight": 4, **trained, **averaged}


def rough_count(spec: Spec) -> int:
    """Return about how many parameters a model has: those of its tables, and of blocks with a network four times as
    wide.
    """
    return sum((12 * len(stack.blocks) * stack.d_model + stack.vocabulary) * stack.d_model for stack in spec.stacks)


def no_room(recipe: Recipe, most: float, count: str) -> OptionError:
    each = bytes_each(recipe)
    total = sum(each.values())
    return OptionError(
        f"a model of {count} parameters takes more memory to train than {recipe.machine.device} has: {total} bytes "
        f"each ({', '.join(each)}), and there are {most * total / ROOM / 2**30:,.1f} GiB; take a smaller one, of "
        f"{most / 2 / 1e6:,.0f}M parameters at most"
    )


def is_large(recipe: Recipe, processes: Processes, model: nn.Module, device: torch.device) -> bool:
    """Return whether weights, gradients, moments and average would take over half of a process's memory."""
    trained = sum(
        parameter.numel() * parameter.element_size() for parameter in model.parameters() if parameter.requires_grad
    )
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    averages = 0 if isinstance(recipe.optimizer.averaging, Unaveraged) else weights
    return weights + averages + 3 * trained > FULL * memory_bytes(device, processes)


def memory_bytes(device: torch.device, processes: Processes) -> float:
    """Return the memory that a process may use: its GPU's, or its share of the machine's; inf if that is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory() / processes.local_count
