"""Flex: torch's flex_attention, which compiles a mask and a bias into the kernel instead of building them.

On a CPU it runs forward in float32 only. Where it cannot be compiled the fused kernel stands in, eagerly, and
`which_kernel` says so.
"""

import functools
import itertools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, FlexKernelOptions, flex_attention

from clearhead.attention.inputs import AttentionInputs, KernelFacts
from clearhead.attention.kernels.base import Context, Kernel, differentiable_once
from clearhead.attention.kernels.block_masks import TILE, MaskTiles, tiles_of
from clearhead.attention.kernels.fused import Fused, scale_query, with_nan
from clearhead.attention.modes import assumed_finite, under_torch_func
from clearhead.attention.score_index import ScoreIndex, read_at
from clearhead.compiling import missing_compiler

BACKEND = "inductor"
COPIES = itertools.count()
CPU_SERVES = torch.backends.cpu.get_cpu_capability().startswith("AVX") and sys.platform != "darwin"
"""Whether torch compiles flex for this processor: 2.13 does not without AVX2, nor on macOS."""
NARROW: Any = {
    "fwd_BLOCK_M": 128,
    "fwd_BLOCK_N": 64,
    "fwd_num_warps": 4,
    "fwd_num_stages": 3,
    "bwd_BLOCK_M1": 32,
    "bwd_BLOCK_N1": 128,
    "bwd_BLOCK_M2": 128,
    "bwd_BLOCK_N2": 32,
    "bwd_num_warps": 4,
    "bwd_num_stages": 3,
}
"""Tiles for heads of 64 in bfloat16, of eight choices tried on an H200 (4 x 16 heads, n = 4,096). Eight documents:
0.11 ms forward instead of 0.25, 0.30 backward instead of 0.33. Every tile full: 0.78 instead of 1.20, 2.08 instead of
2.34."""
FULL: Any = {"fwd_USE_TMA": True}
"""For heads of 128 where most tiles are full, as under padding: 1.25 ms forward instead of 1.43, and documents 0.23
instead of 0.18 (the same H200 and shapes)."""


class Flex(Kernel):
    name: ClassVar[str] = "flex"
    summary: ClassVar[str] = "softmax of a dot product with the mask and the bias compiled into the kernel"

    def refusal(self, facts: KernelFacts) -> str | None:
        if facts.weighting != "softmax":
            return "flex computes softmax, and no other weighting"
        if facts.similarity != "dot":
            return "flex scores by a dot product; this similarity is not one"
        if facts.dropout:
            return "flex has no dropout on the weights"
        if facts.dtype == torch.float64:
            return "flex has no float64"
        if facts.device == "cpu" and (facts.gradients or facts.dtype != torch.float32):
            return "on a CPU flex runs forward only, in float32"
        return None

    def notes(self, facts: KernelFacts) -> tuple[str, ...]:
        missing = missing_for_flex(facts.device)
        compiles = "compiles on first use with each kind of mask, which takes seconds"
        return (
            (compiles,)
            if missing is None
            else (f"runs eagerly, as `fused`, and builds the mask and the bias: {missing}",)
        )

    def run(self, call: AttentionInputs) -> Context:
        nothing = call.query.is_meta or call.query.shape[0] == 0  # no numbers, so nothing to compile for
        compiling = torch.compiler.is_compiling()
        if nothing or under_torch_func() or missing_for_flex(call.query.device.type) is not None:
            return Fused().run(call)
        tiles = None if call.mask.kinds == {"none"} else tiles_of(call, mask_mod)
        blocks, sight = (None, None) if tiles is None else (tiles.block_mask, tiles.sight)
        if sight is not None and not assumed_finite():
            call = call.zero_hidden(sight)
        query, key, scale = scale_query(call)
        run = call_flex if compiling else compile_flex(structure(call, tiles))
        options = kernel_options(call)
        context = run(
            (query, key, call.value), score_mod=score_mod(call), block_mask=blocks, scale=scale, options=options
        )
        context = with_nan(call, differentiable_once(context, Flex.name))
        rows = None if sight is None else sight.rows
        return context if rows is None else context.masked_fill(~rows.unsqueeze(-1), 0)


def missing_for_flex(device: str) -> str | None:
    """Say what compiling flex lacks on this machine for that device; None if nothing.

    Whoever compiles the call has a compiler, and cannot trace the search for one.
    """
    if device == "cpu" and not CPU_SERVES:
        return "torch compiles flex for processors with AVX2, and not on macOS"
    return None if torch.compiler.is_compiling() else missing_compiler(device)


def call_flex(
    tensors: tuple[Tensor, Tensor, Tensor],
    *,
    score_mod: Callable[..., Tensor] | None,
    block_mask: BlockMask | None,
    scale: float,
    options: FlexKernelOptions | None,
) -> Tensor:
    query, key, value = tensors
    grouped = query.shape[1] != key.shape[1]
    return flex_attention(query, key, value, score_mod, block_mask, scale, grouped, kernel_options=options)


def kernel_options(call: AttentionInputs) -> FlexKernelOptions | None:
    """Return the tiles of the kernel that were found to be the quickest; None for torch's own choice."""
    query = call.query
    if not query.is_cuda or query.dtype is not torch.bfloat16 or call.n_query < TILE:
        return None
    if query.shape[-1] == 64:
        return NARROW
    return FULL if query.shape[-1] == 128 and call.mask.kinds == {"padding"} else None


@functools.lru_cache(maxsize=256)
def compile_flex(structure: tuple[object, ...]) -> Callable[..., Tensor]:
    """Compile flex for one structure of mask and bias, from a copy of the code under a name of its own.

    torch keeps what it compiled with the code, and fails where another mask has other attributes (2.13: an
    AttributeError as it looks up why the last one does not fit). By the name it remembers which numbers change, and
    makes those unknowns, which its kernel then cannot read.
    """
    name = f"flex_{next(COPIES)}"
    copied = types.FunctionType(call_flex.__code__.replace(co_name=name), call_flex.__globals__, name)
    return torch.compile(copied, backend=BACKEND, fullgraph=True, options={"guard_filter_fn": guards_that_may_fail})


UNCHANGING = (
    "G['__builtins_",
    "G['__import_torch_",
    "__import__('torch')",
    "G['flex_attention']",
    "dict(type(block_mask)",
)
"""How torch names what belongs to Python and to torch itself: their functions, classes and constants."""


def guards_that_may_fail(guards: Sequence[Any]) -> list[bool]:
    """Choose what torch checks before each call: of 128 conditions 76 say that torch's own code is still the same."""
    return [not guard.name.startswith(UNCHANGING) for guard in guards]


def structure(call: AttentionInputs, tiles: MaskTiles | None) -> tuple[object, ...]:
    """Return what flex is compiled for; only lengths and the batch may vary within it."""
    positions = "from zero" if counts_from_zero(call) else (call.positions.query.ndim, call.positions.key.ndim)
    heads = (call.n_heads, call.key.shape[1], call.key.shape[3], call.value.shape[3])
    bias = (call.position.structure, call.weighting.temperature)
    mask, dense = (None, False) if tiles is None else (tiles.structure, call.mask.kinds == {"padding"})
    return (mask, dense, *bias, positions, heads, call.query.dtype)


def counts_from_zero(call: AttentionInputs) -> bool:
    """Check whether every position is its index in the tensor, so that flex need not load positions."""
    return call.given_positions is None and call.n_query == call.n_key


def cell_reader(call: AttentionInputs) -> Callable[[Tensor, Tensor, Tensor, Tensor], ScoreIndex]:
    """Return the function from the indices flex gives to the cell they name."""
    n_heads = call.n_heads
    if counts_from_zero(call):

        def cell_at(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> ScoreIndex:
            return ScoreIndex(
                batch=batch, head=head, query_index=query, key_index=key, query=query, key=key, n_heads=n_heads
            )

        return cell_at
    positions = call.positions

    def cell_by_position(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> ScoreIndex:
        return ScoreIndex(
            batch=batch,
            head=head,
            query_index=query,
            key_index=key,
            query=positions.query[query] if positions.query.ndim == 1 else read_at(positions.query, batch, query),
            key=positions.key[key] if positions.key.ndim == 1 else read_at(positions.key, batch, key),
            n_heads=n_heads,
        )

    return cell_by_position


def score_mod(call: AttentionInputs) -> Callable[..., Tensor] | None:
    if call.position.bias_kind == "none":
        return None
    part, cell_at, temperature = call.position, cell_reader(call), call.weighting.temperature

    def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + part.bias(cell_at(batch, head, query, key), score.dtype) / temperature

    return add_bias


def mask_mod(call: AttentionInputs) -> Callable[..., Tensor]:
    mask, cell_at = call.mask, cell_reader(call)

    def may_attend(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask.allowed(cell_at(batch, head, query, key))

    return may_attend
