"""What training takes on many GPUs: memory of each by part, bytes that they exchange, and the time of a step.

The two ways are those of `clearhead train`: DDP keeps everything on every GPU and sums float32 gradients while the
backward pass runs; FSDP2 shards parameters, gradients, optimizer states and averages, gathers a block's weights before
it computes (in bfloat16 where the run is in bfloat16), and scatters the sums of its gradients.

Memory that stays is exact to the byte (`sharding`). What a pass needs is counted on tensors without data (`step_cost`).
Times are estimates: matrix products at the rate measured for products, everything else by the bytes it moves, links by
their rate and latency. estimator/README.md sets them beside measured steps, and says what is left out.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, final

from torch import nn

from clearhead.errors import OptionError
from clearhead.model.describe import describe
from clearhead.model.sizes import Spec, build_for_shapes
from clearhead.registry import find_silent
from estimator.sharding import Unit, held_bytes, units_of
from estimator.step_cost import Arithmetic, PassCost, measure_passes

GIB = 2**30
MOST = 1 << 30
"""More sequences than any GPU holds."""
PRODUCT_SHARE = 0.9
"""Share of the rate of a large product that the products of a step reach: 0.90 in GPT-2 124M's profile, 0.89 in base's
(docs/decisions/0010-every-number-and-the-gpu.md).
"""
COMPILED, EAGER = 0.79, 1.59
"""Time of everything else, as a share of what its bytes take at the rate of a copy. Fitted to the measured steps of
GPT-2 124M; the base encoder-decoder is the check. Below 1: a compiled step fuses operations, and so moves fewer bytes.
"""
EAGER_CPU = 3.67
"""The same for a CPU: fitted to the step of a decoder in one process; an encoder-decoder is the check."""
UPDATE_BYTES, AVERAGE_BYTES = 44, 12
"""Bytes that clipping, AdamW and zeroing gradients move for each trained parameter; and what moving an average adds."""
BUCKET = 25 * 2**20
"""Bytes of gradients that DDP sums at a time."""
RESERVED = 4.0
"""GiB that are not torch's to give: CUDA's context, NCCL's and cuBLAS's buffers, and gaps between tensors."""

FEW, MANY = (1, 2), (256, 512)
"""Numbers of sequences for which a pass is counted."""

Parallel = Literal["ddp", "fsdp"]


@final
@dataclass(frozen=True, kw_only=True)
class Rates:
    """What the machines can do; the defaults are an H200's.

    Matrix products, copies and memory were measured on one (results/gpu.md). A link's rate is what NCCL gets of
    NVLink's 450 GB/s, by its maintainers (NVIDIA/nccl-tests#212); the network's is 96 % of an adapter of 400 Gbit/s for
    each GPU; latencies are those of NCCL's own model of a ring (src/graph/tuning.cc). No second GPU was at hand.

    `on_cpu`: the "GPUs" are processes of a CPU that communicate by gloo. Its reduce-scatter sends what an all-reduce
    does, twice what a ring needs, and its threads take the time of the core that computes: nothing is hidden.
    """

    matrix_tflops: float = 798.0
    copy_gb_s: float = 4270.0
    memory_gib: float = 139.0
    link_gb_s: float = 370.0
    network_gb_s: float = 48.0
    gpus_per_node: int = 8
    link_latency_us: float = 3.4
    network_latency_us: float = 9.6
    call_us: float = 8.4
    reserved_gib: float = RESERVED
    on_cpu: bool = False
    attention_tflops: float | None = None
    """Rate of attention's products; None: that of others."""
    doubling_cost: float = 0.0
    """Share by which attention takes longer with each doubling of the processes that share a sequence."""

    def __post_init__(self) -> None:
        for name in ("matrix_tflops", "copy_gb_s", "memory_gib", "link_gb_s", "network_gb_s", "gpus_per_node"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} must be above 0; came {getattr(self, name)}")

    def bus(self, gpus: int) -> float:
        """Return the bytes a second that pass each GPU in a ring: over the network every adapter of a node serves."""
        rate = self.link_gb_s
        if gpus > self.gpus_per_node:
            rate = min(rate, self.network_gb_s * self.gpus_per_node)
        return 1e9 * rate

    def ring_latency(self, gpus: int) -> float:
        """Return the seconds that the last GPU of a ring waits for the first."""
        between = max(0, -(-gpus // self.gpus_per_node) - 1)
        within = gpus - 1 - between
        return 1e-6 * (self.call_us + within * self.link_latency_us + between * self.network_latency_us)

    def tree_latency(self, gpus: int) -> float:
        """Return the seconds that a sum takes up and down a tree: only all-reduce can go that way."""
        nodes = -(-gpus // self.gpus_per_node)
        within = min(gpus, self.gpus_per_node) - 1
        hops = within * self.link_latency_us + math.ceil(math.log2(nodes)) * self.network_latency_us
        return 1e-6 * (self.call_us + 2 * hops)

    def gather_seconds(self, gpus: int, size: float | int) -> float:
        """Return the seconds of an all-gather that makes `size` bytes."""
        return 0.0 if gpus == 1 else size * (gpus - 1) / gpus / self.bus(gpus) + self.ring_latency(gpus)

    def scatter_seconds(self, gpus: int, size: float | int) -> float:
        """Return the seconds of a reduce-scatter that takes `size` bytes."""
        return self.sum_seconds(gpus, size) if self.on_cpu else self.gather_seconds(gpus, size)

    def sum_seconds(self, gpus: int, size: float | int) -> float:
        """Return the seconds of an all-reduce of `size` bytes."""
        if gpus == 1:
            return 0.0
        latency = min(2 * self.ring_latency(gpus), self.tree_latency(gpus))
        return 2 * size * (gpus - 1) / gpus / self.bus(gpus) + latency


@final
@dataclass(frozen=True, kw_only=True)
class Form:
    """A way to train: DDP or FSDP, with or without activation checkpointing. DDP on one GPU is plain training."""

    parallel: Parallel
    checkpointing: bool = False
    context: int = 1
    """Number of GPUs that share a sequence."""

    @property
    def name(self) -> str:
        context = f"/{self.context}" if self.context > 1 else ""
        return f"{self.parallel}{context}{' + checkpointing' if self.checkpointing else ''}"


FORMS = tuple(Form(parallel=parallel, checkpointing=again) for parallel in ("ddp", "fsdp") for again in (False, True))
"""Every form."""


@final
@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model and its sequences, and how the run computes. `averaged`: an average of the weights is kept (EMA).

    Costs of a pass are counted for few sequences, where gradients of tables are the peak, and for many, where the
    logits are. Both grow by the same amount for each further sequence, and the larger holds.
    """

    spec: Spec
    source: int
    target: int
    bfloat16: bool = True
    averaged: bool = False
    compiled: bool = True
    costs: dict[tuple[Arithmetic, bool], list[PassCost]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def length(self) -> int:
        """Tokens of a sequence, as `--tokens` counts them: of the target, or of what an encoder reads."""
        return self.source if self.spec.decoder is None else self.target

    @functools.cached_property
    def model(self) -> nn.Module:
        """The model for its shapes: its numbers are not to be read."""
        return build_for_shapes(self.spec)

    @functools.cached_property
    def units(self) -> list[Unit]:
        return units_of(self.model)

    @functools.cached_property
    def parameters(self) -> int:
        return sum(unit.size for unit in self.units)

    @functools.cached_property
    def trained(self) -> int:
        return sum(shape.size for unit in self.units for shape in unit.shapes if shape.trained)

    @functools.cached_property
    def forward_flops(self) -> tuple[int, int]:
        """Forward FLOPs of one sequence: of the whole model, and of its blocks, which checkpointing computes twice."""
        description = describe(self.spec, source=self.source, target=self.target)
        blocks = sum(section.operations for section in description.sections if "block" in section.name)
        return description.operations, blocks

    @functools.cached_property
    def attention_flops(self) -> int:
        """Forward FLOPs of one sequence that grow with the square of its length."""
        one = describe(self.spec, source=1, target=1).operations
        return max(0, self.forward_flops[0] - self.length * one)

    @functools.cached_property
    def key_value_bytes(self) -> list[int]:
        """Bytes of the keys and values of one sequence, for each block."""
        item = 2 if self.bfloat16 else 4
        shapes = [
            block.attention.head_layout.shape(stack.d_model) for stack in self.spec.stacks for block in stack.blocks
        ]
        return [2 * item * shape.n_kv_heads * shape.d_head * self.length for shape in shapes]

    def arithmetic(self, form: Form) -> Arithmetic:
        """Return how a pass computes in this form: as `train_step` and FSDP's mixed precision do."""
        if not self.bfloat16:
            return "float32"
        if form.parallel == "fsdp":
            return "bfloat16"
        gone = self.compiled and form.checkpointing
        silent = find_silent(self.model, "supports_bfloat16")
        return "autocast" if gone or silent is not None else "rounded"

    def pass_cost(self, form: Form, sequences: int) -> PassCost:
        """Return the bytes of a pass over so many sequences."""
        key = (self.arithmetic(form), form.checkpointing)
        if key not in self.costs:
            self.costs[key] = measure_passes(
                self.spec,
                batches=(*FEW, *MANY),
                source=self.source,
                target=self.target,
                arithmetic=key[0],
                checkpointing=key[1],
            )
        few, many = self.costs[key][:2], self.costs[key][2:]
        return PassCost(*map(max, line_through(FEW, few, sequences), line_through(MANY, many, sequences)))


def line_through(batches: tuple[int, int], costs: Sequence[PassCost], sequences: int) -> list[int]:
    """Return the cost of any number of sequences from those of two."""
    (low, high), (less, more) = batches, costs
    return [
        at_low + (sequences - low) * (at_high - at_low) // (high - low)
        for at_low, at_high in zip(less, more, strict=True)
    ]


class Memory(NamedTuple):
    """Bytes on the fullest GPU, by part. float32 parameters are the masters of a bfloat16 run."""

    parameters: int
    gradients: int
    optimizer: int
    average: int
    copies: int
    """Weights in the form they are computed with: bfloat16 copies of all, or what FSDP has gathered at a time."""
    activations: int
    working: int
    """Logits, loss and their gradients, and what operations need meanwhile: the peak beyond the activations."""
    buffers: int
    """What communication sends from and receives into."""

    @property
    def total(self) -> int:
        return sum(self)


class Communication(NamedTuple):
    """Bytes that each GPU sends in a step; it receives as many."""

    gather: int
    scatter: int
    reduce: int

    @property
    def total(self) -> int:
        return sum(self)


class StepTime(NamedTuple):
    """Seconds of a step. `compute` and `communication` overlap; what does not is `exposed`."""

    compute: float
    communication: float
    exposed: float
    update: float

    @property
    def total(self) -> float:
        return self.compute + self.exposed + self.update


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """Training of a workload on so many GPUs: `sequences` in a step over all of them, `micro` in a pass of each."""

    workload: Workload
    gpus: int
    rates: Rates = Rates()
    sequences: int | None = None
    micro: int | None = None
    context: int = 1
    """Number of GPUs that share a sequence, in every form that is estimated."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise OptionError(f"gpus: 1 or more; came {self.gpus}")
        if self.context < 1 or self.gpus % self.context:
            raise OptionError(f"gpus: {self.gpus} cannot be grouped by context={self.context}")
        if self.sequences is not None and self.sequences < self.gpus // self.context:
            length = self.workload.length
            raise OptionError(
                f"tokens: a step of {self.sequences * length:,} tokens has {self.sequences:,} sequences of {length:,}, "
                f"too few for {self.gpus:,} GPUs. Give {self.gpus * length:,} tokens or more, or fewer GPUs"
            )

    def estimate(self, form: Form) -> "Estimate":
        """Return memory, communication and time of a step in this form. A GPU has its part of `per_gpu` sequences."""
        form = replace(form, context=self.context)
        groups = self.gpus // self.context
        largest = self.largest(form)
        per_gpu = largest or 1 if self.sequences is None else -(-self.sequences // groups)
        micro = min(per_gpu, self.micro or max(largest, 1))
        passes = -(-per_gpu // micro)
        micro = -(-per_gpu // passes)
        return Estimate(
            form=form,
            gpus=self.gpus,
            sequences=self.sequences or per_gpu * groups,
            micro=micro,
            passes=passes,
            largest=largest,
            memory=self.memory(form, micro),
            communication=self.communication(form, passes, per_gpu),
            time=self.time(form, per_gpu, passes),
            capacity=self.capacity,
        )

    def choose(self, forms: Sequence[Form] = FORMS) -> "Estimate":
        """Return the estimate of the quickest form that fits, or of the one that needs least where none does."""
        estimates = [self.estimate(form) for form in forms]
        fitting = [estimate for estimate in estimates if estimate.fits]
        if not fitting:
            return min(estimates, key=lambda estimate: estimate.memory.total)
        return max(fitting, key=lambda estimate: estimate.sequences / estimate.time.total)

    @property
    def capacity(self) -> int:
        return int(max(0.0, self.rates.memory_gib - self.rates.reserved_gib) * GIB)

    def largest(self, form: Form) -> int:
        """Return how many sequences of a pass fit on each GPU; 0 where not even one does."""
        fitting, above = 0, 1
        while self.memory(form, above).total <= self.capacity and above < MOST:
            fitting, above = above, 2 * above
        while above - fitting > 1:
            middle = (fitting + above) // 2
            if self.memory(form, middle).total <= self.capacity:
                fitting = middle
            else:
                above = middle
        return fitting

    def memory(self, form: Form, micro: int) -> Memory:
        work, sharded = self.workload, form.parallel == "fsdp"
        held_by_rank = held_bytes(work.units, gpus=self.gpus, sharded=sharded, averaged=work.averaged)
        cost = work.pass_cost(form, micro)
        # DDP sums gradients where they are (gradient_as_bucket_view), and so needs no buffers of its own.
        copies, buffers = self.gathered() if sharded else (cost.copies, 0)
        # Keys and values of a layer are whole in each GPU that shares the sequence, and so are their gradients.
        whole = 2 * micro * max(work.key_value_bytes) if form.context > 1 else 0
        return Memory(
            *held_by_rank,
            copies=copies,
            activations=cost.activations // form.context,
            working=(cost.peak - cost.activations) // form.context + whole,
            buffers=buffers,
        )

    def gathered(self) -> tuple[int, int]:
        """Return the bytes of weights that FSDP has gathered at a time, and of its buffers.

        The root stays gathered from its forward to its backward; of the blocks the one that computes is, and the next.
        Beside them lie the all-gather's output, a block's gradients, and the reduce-scatter's float32 input.
        """
        item = 2 if self.workload.bfloat16 else 4
        root, *blocks = self.workload.units
        largest = max(blocks or [Unit("none", ())], key=lambda unit: unit.size)
        flat = largest.gathered(self.gpus)
        return item * (root.size + 2 * largest.size), item * (flat + largest.size) + 4 * flat

    def communication(self, form: Form, passes: int, each: int = 0) -> Communication:
        """Return the bytes that each GPU sends, padding included; a few scalars (loss, gradient norm) are not.

        `each` is how many sequences a group of GPUs has, which send their keys and values to each other.
        """
        peers = self.gpus - 1
        keys = each * sum(self.workload.key_value_bytes) * (form.context - 1) // form.context
        keys_gathered = keys * (2 if form.checkpointing else 1)
        if form.parallel == "ddp":
            return Communication(keys_gathered, keys, 2 * 4 * self.workload.trained * peers // self.gpus)
        item = 2 if self.workload.bfloat16 else 4
        root, *blocks = self.workload.units
        gathered = root.gathered(self.gpus) + 2 * sum(unit.gathered(self.gpus) for unit in blocks)
        scattered = sum(unit.gathered(self.gpus, trained=True) for unit in self.workload.units)
        share, twice = peers / self.gpus, 2 if self.rates.on_cpu else 1
        sent, summed = round(passes * item * gathered * share), round(passes * 4 * twice * scattered * share)
        return Communication(sent + keys_gathered, summed + twice * keys, 0)

    def time(self, form: Form, each: int, passes: int) -> StepTime:
        """Return the time of a step of `each` sequences on every GPU in so many passes."""
        work, rates = self.workload, self.rates
        forward, backward = self.compute_seconds(form, each / passes)
        shards = self.gpus if form.parallel == "fsdp" else 1
        moved = (UPDATE_BYTES + AVERAGE_BYTES * work.averaged) * work.trained / shards
        update = moved / (1e9 * rates.copy_gb_s)
        # A block waits for its keys and values, forward, again if it is computed again, and for their gradients.
        waits = each * sum(
            (2 if form.checkpointing else 1) * rates.gather_seconds(form.context, size)
            + rates.scatter_seconds(form.context, size)
            for size in work.key_value_bytes
        )
        compute = passes * (forward + backward)
        if form.parallel == "ddp":
            size = 4 * work.trained
            buckets = max(1, -(-size // BUCKET))
            each_bucket = rates.sum_seconds(self.gpus, size / buckets)
            # The first buckets are summed while the last pass goes on backward; the last one when it has ended.
            exposed = max(each_bucket, buckets * each_bucket - backward * (buckets - 1) / buckets)
            exposed = buckets * each_bucket if rates.on_cpu else exposed
            return StepTime(compute, buckets * each_bucket + waits, exposed + waits, update)
        item = 2 if work.bfloat16 else 4
        root, *blocks = work.units
        gather = sum(rates.gather_seconds(self.gpus, item * unit.gathered(self.gpus)) for unit in blocks)
        scatter = sum(rates.scatter_seconds(self.gpus, 4 * unit.gathered(self.gpus, trained=True)) for unit in blocks)
        first = rates.gather_seconds(self.gpus, item * root.gathered(self.gpus))
        last = rates.scatter_seconds(self.gpus, 4 * root.gathered(self.gpus, trained=True))
        every = first + 2 * gather + scatter + last
        hidden = min(gather, forward) + min(gather + scatter, backward)
        exposed = passes * (every if rates.on_cpu else every - hidden)
        return StepTime(compute, passes * every + waits, exposed + waits, update)

    def compute_seconds(self, form: Form, sequences: float | int) -> tuple[float, float]:
        """Return the seconds of forward and of backward of a pass."""
        work, rates = self.workload, self.rates
        forward_flops, blocks = work.forward_flops
        again, share = blocks if form.checkpointing else 0, sequences / form.context
        times = 4 if form.checkpointing else 3
        attention = times * work.attention_flops * share
        rate = rates.attention_tflops or PRODUCT_SHARE * rates.matrix_tflops
        products = ((3 * forward_flops + again) * share - attention) / (PRODUCT_SHARE * 1e12 * rates.matrix_tflops)
        products += attention / (1e12 * rate) * (1 + rates.doubling_cost * math.log2(form.context))
        traffic = work.pass_cost(form, max(1, round(sequences))).traffic / form.context
        compiled = work.compiled and form.parallel == "ddp"  # `clearhead train` compiles no model that is sharded
        moving = EAGER_CPU if rates.on_cpu else COMPILED if compiled else EAGER
        memory_seconds = moving * traffic / (1e9 * rates.copy_gb_s)
        forward = (products + memory_seconds) * forward_flops / (3 * forward_flops + again)
        return forward, products + memory_seconds - forward


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a step takes in one form. `largest` is how many sequences fit into a pass of each GPU."""

    form: Form
    gpus: int
    sequences: int
    micro: int
    passes: int
    largest: int
    memory: Memory
    communication: Communication
    time: StepTime
    capacity: int

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.capacity
