"""A training step: gradient accumulation over micro-batches, then an update of the weights and their average; and the
batches that steps are taken over.

`TrainState.step` runs each operation as it comes. On a GPU `CapturedStep` records a pass once for each shape of batch,
and the update once, as CUDA graphs, and replays them: a small model spends its time launching kernels otherwise.
"""

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from clearhead import compiling, cuda_graphs, devices, registry
from clearhead.attention.modes import assuming_finite
from clearhead.attention.positions.embedded import SinusoidalTable
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.errors import OptionError, errors_as
from clearhead.model.outputs import deferring
from clearhead.model.transformers import Transformer, splitting_sequences
from clearhead.text.batches import BatchPlanner
from clearhead.text.mixing import Shares, check_sources, mix_planners, read_mix, sources_of
from clearhead.text.store import Store
from clearhead.training import checkpoints, chunked_loss
from clearhead.training.distributed import Processes
from clearhead.training.keyed_dropout import ROW_KEYS, KeyedDropout, draw_row_keys
from clearhead.training.losses import NOTHING, Loss, cross_entropy, r_drop
from clearhead.training.optimizers import RoundAll, copy_all, make_optimizer, move_all, zero_all
from clearhead.training.parallel import Parallel, SingleProcess, local_tensors
from clearhead.training.recipe import Machine, Optimizer, Recipe
from clearhead.training.schedules import Unaveraged
from clearhead.training.tasks.base import Task
from clearhead.training.tasks.learning import Batch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class BatchStream:
    """The batches of all epochs, one after another, starting anywhere."""

    def __init__(self, recipe: Recipe, task: Task, store: Store, *, filled: bool) -> None:
        self.store, self.task, self.seed, self.filled = store, task, recipe.seed, filled
        self.keyed = bool(recipe.machine.keyed_dropout)
        self.planner = plan_batches(recipe, task, store)
        self.taken = 0

    def count(self) -> int:
        """Return the number of batches in the first epoch."""
        return self.planner.count(0)

    def batches(self, skip: int) -> Iterator[Batch]:
        """Yield the batches without the first `skip`, which are not read."""
        self.taken, epoch = skip, 0
        while skip and skip >= (count := self.planner.count(epoch)):
            skip, epoch = skip - count, epoch + 1
        while True:
            for rows in self.planner.epoch(epoch, skip):
                self.taken += 1
                random = np.random.default_rng([self.seed, self.taken])
                batch = self.task.read(self.store, rows, random, filled=self.filled)
                yield {**batch, ROW_KEYS: draw_row_keys(random, len(batch["wanted"]))} if self.keyed else batch
            skip, epoch = 0, epoch + 1


def plan_batches(recipe: Recipe, task: Task, store: Store) -> BatchPlanner:
    """Return the plan of a training's batches; of a mixture, by its shares and by how many steps the run has."""
    at_once, seed, passes = recipe.batching.at_once, recipe.seed, recipe.batching.passes
    if recipe.batching.mix is None:
        return task.planner(store, at_once, seed)
    pieces, sources = read_mix(recipe.batching.mix), sources_of(store)
    check_sources(sources, pieces)
    used = [i for i in range(len(sources)) if any(piece.shares[i] for piece in pieces)]
    planners: list[BatchPlanner] = []
    for i in used:
        with errors_as(OptionError, f"mix: {sources[i].name}"):  # each is shuffled with a seed of its own
            planners.append(task.planner(store, at_once, seed + (i << 64), sources[i].records))
    mixed = mix_planners(planners, [sources[i].name for i in used])
    steps = recipe.budget.steps or (None if recipe.plan is None else recipe.plan.steps)
    if recipe.budget.epochs is not None:
        steps = math.ceil(recipe.budget.epochs * mixed.count(0) / passes)
    unit = passes * mixed.units
    known = pieces if steps is not None else pieces[:1]  # a budget of minutes that is being timed
    shares = [(int(piece.begins * (steps or 0)) * unit, [piece.shares[i] for i in used]) for piece in known]
    return replace(mixed, shares=Shares(shares))


def split_rows(batch: Batch, parts: int) -> list[Batch]:
    """Return a batch as `parts` smaller ones, of about equally many rows; those without a target are left out.

    >>> import torch
    >>> [one["wanted"].tolist() for one in split_rows({"wanted": torch.tensor([[1], [2], [NOTHING]])}, 2)]
    [[[1], [2]]]
    """
    if parts == 1:
        return [batch]
    split = {name: tensor.tensor_split(parts) for name, tensor in batch.items()}
    micro_batches = [{name: parts_of_tensor[i] for name, parts_of_tensor in split.items()} for i in range(parts)]
    return [smaller for smaller in micro_batches if (smaller["wanted"] != NOTHING).any()]


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of a step of a run in a process; neighbouring steps have unrelated ones."""
    return int(
        np.random.SeedSequence([seed, step, rank] if rank else [seed, step]).generate_state(1, np.uint64)[0]
        >> np.uint64(1)
    )


WARM_UPS = 3


class Totals(NamedTuple):
    """Sums since they were last cleared: negative log-likelihood and the places it is over; and the last gradient's
    norm.
    """

    nll: float
    places: int
    grad_norm: float


class TrainState:
    """The state that a step changes: a model on its device, its optimizer, and the average (EMA) of its weights.

    `parallel` is how it is trained together with other processes, None for one alone.
    """

    def __init__(
        self,
        model: Transformer,
        task: Task,
        optimizer: Optimizer,
        machine: Machine,
        parallel: Parallel | None = None,
    ) -> None:
        checkpoints.check_buffers(model)
        self.model, self.task, self.clip = model, task, float("inf") if optimizer.clip is None else optimizer.clip
        self.parallel = SingleProcess(Processes()) if parallel is None else parallel
        self.bfloat16 = machine.precision == "bfloat16"
        # A part that does not say otherwise may make float32 numbers in between: there autocast decides at every
        # operation. So it does in compiled blocks that are computed again, when rounded copies of the weights are gone;
        # what FSDP gathers comes back.
        gone = machine.compile and machine.activation_checkpointing and not self.parallel.shards
        self.silent = registry.find_silent(model, "supports_bfloat16")
        # A task of the user's own may compute more with what the model says.
        plain = registry.known_type(type(task)) or registry.says(type(task), "plain_logits", beside="logits")
        self.rounds = self.bfloat16 and self.silent is None and plain and not gone
        self.assumes_finite = self.silent is None and plain and not machine.compile
        dtype = torch.bfloat16 if self.rounds else None
        self.averaged = model if isinstance(optimizer.averaging, Unaveraged) else copy.deepcopy(model)
        self.loss_module = BatchLoss(model, task, optimizer, self.parallel.context_group, self.parallel.part)
        self.parallel.shard(self.loss_module, dtype)
        if self.averaged is not model:
            self.parallel.shard(self.averaged)
        self.device = next(model.parameters()).device
        self.parameters = [one for one in model.parameters() if one.requires_grad]
        self.optimizer = make_optimizer(model, self.parameters, optimizer, self.device)
        self.average = [one for one in self.averaged.parameters() if one.requires_grad]
        self.follows = True
        self.nll = torch.zeros((), dtype=devices.widest_float(self.device), device=self.device)
        self.grad_norm = torch.zeros((), device=self.device)
        self.places = 0
        if machine.compile and self.device.type == "cuda":
            compiling.register_operators()
        # The loss belongs inside: compiled with the model, float32 logits never stand in memory.
        compiled = functools.partial(compiling.compile, device=self.device.type) if machine.compile else lambda run: run
        # Other processes wait for a gradient of each weight.
        self.rounds_at_once = self.rounds and isinstance(self.parallel, SingleProcess)
        if self.rounds_at_once:
            self.run_loss = functools.partial(loss_rounded_at_once, compiled(loss_with))
        else:
            self.run_loss = compiled(loss_in)
        self.fresh = False
        # Sharded weights are rounded while they are gathered.
        dtype = None if self.parallel.shards else dtype
        self.forward = self.parallel.wrap(LossPass(self.loss_module, self.run_loss, dtype))
        self.make_state()
        self.captures = can_capture(self.device, machine, self.parallel)
        self.forget_graphs()

    def forget_graphs(self) -> None:
        """Capture steps anew from here on, if they are captured: what was captured no longer fits."""
        self.captured = CapturedStep(self.device) if self.captures else None

    def step(self, batches: Sequence[Batch], rate: float) -> None:
        """Take one optimizer step over these micro-batches, at this learning rate. They are those of all processes, and
        each computes its rows of every one. Captured ones must have the full shape of their width.
        """
        n_targets = sum(int((batch["wanted"] != NOTHING).sum()) for batch in batches)
        self.places += n_targets
        self.set_rate(rate)
        for i, batch in enumerate(batches, 1):
            share = self.parallel.scale / max(n_targets, 1)
            with self.parallel.accumulating(last=i == len(batches)):
                rows = self.parallel.share(batch)
                if self.captured is None:
                    self.backward(to_device(rows, self.device), torch.tensor(share, device=self.device))
                else:
                    self.captured.run_pass(self, rows, share)
        if self.captured is None:
            self.update()
        else:
            self.captured.run_update(self)

    def backward(self, batch: Batch, share: Tensor) -> None:
        """Add the gradients of a micro-batch, times `share`: one over the places of all the step's micro-batches."""
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16 and not self.rounds)
        finite = assuming_finite() if self.assumes_finite else contextlib.nullcontext()
        with devices.on_device(self.nll), autocast, finite:
            loss = self.forward(batch, fresh=True) if self.fresh else self.forward(batch)
        (loss.objective * share).backward()
        self.fresh = False
        if self.parallel.part == 0:  # the other parts of the layers gave the same loss
            self.nll += loss.nll

    def update(self) -> None:
        """Clip the gradients, step the optimizer, and clear the gradients."""
        self.grad_norm.copy_(self.parallel.clip(self.parameters, self.clip, self.device))
        self.optimizer.step()
        self.clear_gradients()

    def gradients(self) -> list[Tensor]:
        return [one.grad for one in self.parameters if one.grad is not None]

    def clear_gradients(self) -> None:
        """Drop the gradients; on a GPU zero them, as captured steps find them again. Where weights are rounded at once
        the next pass is `fresh` and writes over them.
        """
        self.fresh = self.rounds_at_once
        if self.fresh:
            return
        if self.device.type == "cuda":
            zero_all(local_tensors(self.gradients()))
        else:
            for one in self.parameters:
                one.grad = None

    @torch.no_grad()
    def make_state(self) -> None:
        """Create the optimizer's state for each parameter, by a step that changes nothing and is not counted."""
        for one in self.parameters:
            one.grad = torch.zeros_like(one)
        self.set_rate(0.0)
        self.optimizer.step()
        for state in self.optimizer.state.values():
            for one in state.values():  # a step count and momenta, all as before the first step
                one.zero_()
        self.clear_gradients()

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def hold_average(self, ema_weight: float) -> None:
        """Materialise the averaged copy before a step that updates it."""
        if ema_weight < 1:
            self.make_copy()

    @torch.no_grad()
    def make_copy(self) -> None:
        """Copy the weights into the average, where it is still to follow them."""
        if self.follows and self.averaged is not self.model:
            copy_all(local_tensors(self.average), local_tensors(self.parameters))
        self.follows = False

    @torch.no_grad()
    def update_average(self, ema_weight: float) -> None:
        """Move the average towards the weights after a step. A weight of 1 only marks it as a copy to be made when
        asked for.
        """
        if ema_weight == 1:
            self.follows = True
        elif ema_weight > 0 and self.averaged is not self.model:
            move_all(local_tensors(self.average), local_tensors(self.parameters), ema_weight)

    @torch.no_grad()
    def averaged_model(self) -> Transformer:
        """Return the model to evaluate and to save: the averaged one, or the model in training where nothing is
        averaged. What parts of a user's own keep in buffers, such as a running mean, is not averaged: it is as the
        training has left it.
        """
        self.make_copy()
        if self.averaged is not self.model:
            for kept, own in zip(self.averaged.buffers(), self.model.buffers(), strict=True):
                kept.copy_(own)
        return self.averaged

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Return whether every weight and all that is saved beside them is finite, in every process."""
        tensors = local_tensors([*self.parameters, *checkpoints.saved_buffers(self.model).values()])
        finite = bool(torch.stack([one.isfinite().all() for one in tensors]).all())
        return not any(self.parallel.processes.highest(float(not finite)))

    def collect_nll(self) -> None:
        """Add up the running loss of all processes; the first one goes on with the sum, the others with 0."""
        self.parallel.processes.add_up(self.nll)
        if not self.parallel.processes.is_first:
            self.nll.zero_()

    def totals(self) -> Totals:
        self.parallel.processes.add_up(self.nll)
        found = Totals(self.nll.item(), self.places, self.grad_norm.item())
        self.nll.zero_()
        self.places = 0
        return found


class BatchLoss(nn.Module):
    """The loss of a batch: cross-entropy, or R-Drop's over two passes with different dropout. Rows that carry keys have
    the masks of these.
    """

    def __init__(
        self,
        model: Transformer,
        task: Task,
        optimizer: Optimizer,
        context_group: "ProcessGroup | None" = None,
        part: int = 0,
    ) -> None:
        super().__init__()
        self.model, self.task, self.context_group, self.part = model, task, context_group, part
        self.smoothing, self.r_drop = optimizer.smoothing, optimizer.r_drop

    def forward(self, batch: Batch) -> Loss:
        keys = batch.get(ROW_KEYS)
        batch = {name: one for name, one in batch.items() if name != ROW_KEYS}
        if self.r_drop:
            batch = {name: torch.cat([one, one]) for name, one in batch.items()}
            keys = None if keys is None else torch.cat([keys, keys + 1])
        wanted, split = batch["wanted"], None
        if self.context_group is not None:
            split = SequenceSplit.over(self.context_group, wanted.shape[1])
            wanted = split.take(wanted, 1, fill=NOTHING)
        long = None if self.r_drop else chunked_loss.long_output(self.model, self.task, wanted.numel())
        with (
            contextlib.nullcontext() if keys is None else KeyedDropout(keys, split, self.part),
            contextlib.nullcontext() if long is None else deferring(long),
            splitting_sequences(self.model, self.context_group),
        ):
            logits = self.task.logits(self.model, batch).flatten(0, -2)
        wanted = wanted.flatten()
        if long is not None:
            return chunked_loss.chunked_cross_entropy(long, logits, wanted, self.smoothing)
        if self.r_drop:
            return r_drop(logits, wanted, self.smoothing, self.r_drop)
        return cross_entropy(logits, wanted, self.smoothing)


class LossPass(nn.Module):
    """The loss of a batch as it is computed: compiled or not, with weights rounded or not. DDP wraps it."""

    def __init__(
        self,
        loss: BatchLoss,
        run: Callable[..., Loss],
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.loss, self.run, self.dtype = loss, run, dtype

    def forward(self, batch: Batch, **options: bool) -> Loss:
        return self.run(self.loss, batch, self.dtype, **options)


def loss_in(loss: BatchLoss, batch: Batch, dtype: torch.dtype | None) -> Loss:
    """Return the loss, with all weights rounded to this dtype; None leaves them as they are.

    Gradients pass through the rounding to the weights themselves, in float32. Unlike under autocast, everything between
    the products is in the narrow dtype as well, which is half of the memory to move.
    """
    if dtype is None:
        return loss(batch)
    rounded = {name: one.to(dtype) for name, one in loss.named_parameters()}
    return functional_call(loss, rounded, (batch,))


def loss_with(loss: BatchLoss, weights: Mapping[str, Tensor], batch: Batch) -> Loss:
    """Return the loss with these tensors in place of its weights."""
    return functional_call(loss, dict(weights), (batch,))


def loss_rounded_at_once(
    run: Callable[[BatchLoss, Mapping[str, Tensor], Batch], Loss],
    loss: BatchLoss,
    batch: Batch,
    dtype: torch.dtype | None,
    *,
    fresh: bool = False,
) -> Loss:
    """Return the same loss, with all weights rounded by one call, and their gradients added by one, or written over
    what is there in a `fresh` pass.
    """
    if dtype is None:
        return run(loss, dict(loss.named_parameters()), batch)
    names, weights = zip(*loss.named_parameters(), strict=True)
    return run(loss, dict(zip(names, RoundAll.apply(dtype, fresh, *weights), strict=True)), batch)


class CapturedStep:
    """A step as CUDA graphs, replayed: one per shape of micro-batch and one for the update, in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.share = torch.zeros((), device=device)
        self.passes: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self.update: torch.cuda.CUDAGraph | None = None
        self.updates = 0
        self.kept: list[Tensor] = []

    def run_pass(self, train_state: TrainState, batch: Batch, share: float) -> None:
        """Add the gradients of a micro-batch."""
        shape = (train_state.fresh, *((name, tuple(one.shape)) for name, one in batch.items()))
        if shape not in self.passes:
            self.passes[shape] = self.capture_pass(train_state, batch)
        graph, inputs = self.passes[shape]
        self.share.fill_(share)
        for name, one in batch.items():
            inputs[name].copy_(one.pin_memory(), non_blocking=True)
        graph.replay()
        train_state.fresh = False

    def capture_pass(self, train_state: TrainState, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch]:
        """Capture a pass as a graph, after a warm-up whose gradients and random numbers are undone."""
        random = torch.cuda.get_rng_state(train_state.device)
        inputs = to_device(batch, train_state.device)
        kept = [one.clone() for one in train_state.gradients()], train_state.nll.clone()
        fresh = train_state.fresh

        def run() -> None:
            train_state.fresh = fresh
            train_state.backward(inputs, self.share)

        # What is not for one shape alone was warmed up with the first.
        cuda_graphs.warm_up(run, 1 if self.passes else WARM_UPS)
        torch.cuda.empty_cache()
        graph = cuda_graphs.capture_graph(run, self.pool)
        # A table of positions that grows later is another tensor: the graph goes on reading this one.
        self.kept += [module.table for module in train_state.model.modules() if isinstance(module, SinusoidalTable)]
        copy_all(train_state.gradients(), kept[0])
        train_state.nll.copy_(kept[1])
        torch.cuda.set_rng_state(random, train_state.device)
        return graph, inputs

    def run_update(self, train_state: TrainState) -> None:
        """Run the first two updates eagerly, as capturing asks; then capture the update, and replay it."""
        self.updates += 1
        if self.updates < WARM_UPS:
            train_state.update()
            return
        if self.update is None:
            self.update = cuda_graphs.capture_graph(train_state.update, self.pool)
        self.update.replay()
        train_state.optimizer.count_write()
        train_state.fresh = train_state.rounds_at_once


def can_capture(device: torch.device, machine: Machine, parallel: Parallel) -> bool:
    """Return whether steps are captured: on a GPU, unless the machine's options say otherwise, or there are other
    processes to communicate with. Activation checkpointing reads the state of random numbers, which a graph cannot.
    """
    alone = isinstance(parallel, SingleProcess) and not machine.activation_checkpointing
    return device.type == "cuda" and machine.graphs and alone


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> Batch:
    return {name: one.to(device) for name, one in batch.items()}


def training_tensors(
    train_state: TrainState, select: Callable[[nn.Module], dict[str, Tensor]] = checkpoints.named_tensors
) -> dict[str, Tensor]:
    """Return all tensors that training changes, by name: weights, optimiser moments, average, running loss.

    `select` returns those of a model.
    """
    tensors = {f"model.{name}": tensor for name, tensor in select(train_state.model).items()}
    names = {id(parameter): name for name, parameter in train_state.model.named_parameters()}
    for parameter, state in train_state.optimizer.state.items():
        tensors |= {f"optimizer.{names[id(parameter)]}.{key}": value for key, value in state.items()}
    if train_state.averaged is not train_state.model:
        tensors |= {f"average.{name}": tensor for name, tensor in select(train_state.averaged_model()).items()}
    return tensors | {"nll": train_state.nll}
