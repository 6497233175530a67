"""A lean step: one new position of every row, through the same weights and caches as the model's forward.

In a step of a small model the arithmetic takes less time than Python takes to find its way through the modules. Here
that way is found once: each part of a block that is of a common kind becomes a function of its weights, and any other
runs as it is. A common kind is told by its exact class: a subclass, an adapter or a quantized map in a part's place is
called as the module it is. The tests hold cached decoding to the uncached forward for every kind of part.

A model that is watched (`clearhead.taps`), hooked or run under autocast takes the ordinary forward.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.heads import WholeMap, alike, is_hooked, joinable
from clearhead.attention.layer import Attention
from clearhead.attention.modes import autocast_enabled
from clearhead.attention.similarity import Similarity
from clearhead.decoding.caches import Cache, Caches, Fixed, Growing
from clearhead.model.arrangements import After, Alone, Bare, Before, Connection
from clearhead.model.blocks import Block
from clearhead.model.cpu_matmul import few_rows, is_large, through
from clearhead.model.feedforward import Gated, Plain
from clearhead.model.kv_source import KVSources
from clearhead.model.norms import BuiltLayerNorm, BuiltRMSNorm
from clearhead.model.transformers import Decoder
from clearhead.taps import Tapped

__all__ = ["lean_stack"]

Step = Callable[[Tensor], Tensor]
"""From the vectors of one position, `(row, d_model)`, to what comes of them."""


def lean_stack(decoder: Decoder, caches: Caches) -> Step | None:
    """The blocks and the last norm as one function; None where someone looks on, and the forward must run itself."""
    if autocast_enabled(decoder.embedding.table) or any(map(observed, decoder.modules())):
        return None
    steps = [lean_block(*pair) for pair in zip(decoder.stack.blocks, caches.reads, strict=True)]
    if decoder.stack.norm is not None:
        steps.append(lean(decoder.stack.norm))

    def step(x: Tensor) -> Tensor:
        for each in steps:
            x = each(x)
        return x

    return step


def observed(module: nn.Module) -> bool:
    """Whether someone sees what the module is given or gives, so that it must be called."""
    return is_hooked(module) or (isinstance(module, Tapped) and module.tapped)


def lean_block(block: Block, reads: KVSources) -> Step:
    if type(block) is not Block:
        return lambda x: block(x.unsqueeze(1), reads).squeeze(1)
    branches = [connected(block.around_attention, lean_own(block.attention, cast(Cache, reads.own)))]
    if block.cross is not None:
        branches.append(connected(block.around_cross, lean_cross(block.cross, cast(Cache, reads.cross))))
    if block.feed_forward is not None:
        branches.append(connected(block.around_feed_forward, lean(block.feed_forward)))
    if len(branches) == 1:
        return branches[0]
    first, second, *rest = branches
    if not rest:
        return lambda x: second(first(x))
    third = rest[0]
    return lambda x: third(second(first(x)))


def connected(around: Connection, branch: Step) -> Step:
    """The branch with its residual and norm. There is no dropout here."""
    norm, kind = None if around.norm is None else lean(around.norm), type(around)
    if kind is Before and norm is not None:
        return lambda x: x + branch(norm(x))
    if kind is After and norm is not None:
        return lambda x: norm(x + branch(x))
    if kind is Bare:
        return lambda x: x + branch(x)
    if kind is Alone:
        return branch
    return lambda x: around(x.unsqueeze(1), lambda inner: branch(inner.squeeze(1)).unsqueeze(1)).squeeze(1)


def lean(module: nn.Module) -> Step:
    """Return a module as a function of `(row, d_model)`; one of a class that is not in `KINDS` runs as it is."""
    make = KINDS.get(type(module))
    return (lambda x: module(x.unsqueeze(1)).squeeze(1)) if make is None else make(module)


def lean_layer_norm(norm: BuiltLayerNorm) -> Step:
    shape, gamma, beta, epsilon = norm.gamma.shape, norm.gamma, norm.beta, norm.epsilon
    return lambda x: torch.layer_norm(x, shape, gamma, beta, epsilon)


def lean_rms_norm(norm: BuiltRMSNorm) -> Step:
    shape, gamma, epsilon = norm.gamma.shape, norm.gamma, norm.epsilon
    return lambda x: torch.rms_norm(x, shape, gamma, epsilon)


def lean_linear(linear: nn.Linear) -> Step:
    return product(linear.weight, linear.bias) if alike([linear.weight]) else linear


def lean_plain(network: Plain) -> Step:
    maps, activate = (network.up, network.down), network.activate
    if all(type(part) is nn.Linear and alike([part.weight]) and is_large(part.weight) for part in maps):
        first, second = ((part.weight, part.bias) for part in maps)
        return lambda x: through(x, first, activate, second)
    up, down = lean(network.up), lean(network.down)
    return lambda x: down(activate(up(x)))


def lean_gated(network: Gated) -> Step:
    gate, up, down = lean(network.gate), lean(network.up), lean(network.down)
    return lambda x: down(F.silu(gate(x)) * up(x))


KINDS: dict[type[nn.Module], Callable[[Any], Step]] = {
    BuiltLayerNorm: lean_layer_norm,
    BuiltRMSNorm: lean_rms_norm,
    nn.Linear: lean_linear,
    Plain: lean_plain,
    Gated: lean_gated,
}
"""How a module of each common class becomes a function; by exact class, since a subclass may do more."""


def lean_own(layer: Attention, cache: Cache) -> Step:
    """Self-attention that keeps every key."""
    scale = plain_scale(layer)
    if not isinstance(cache, Growing) or scale is None or layer.mask.kinds != {"causal"}:
        return lambda x: cache(layer, x.unsqueeze(1)).squeeze(1)
    heads, d_head, clock, position = layer.shape, layer.shape.d_head, cache.clock, layer.position
    maps = [cast(WholeMap, part).linear for part in (layer.query, layer.key, layer.value)]
    mapped, widths = joined(maps), [part.weight.shape[0] for part in maps]
    output, grouped = lean(layer.output), heads.n_heads != heads.n_kv_heads

    def step(x: Tensor) -> Tensor:
        rows = x.shape[0]
        parts = torch.split_with_sizes(mapped(x), widths, 1)
        query, key, value = (part.view(rows, -1, 1, d_head) for part in parts)
        if position.turns:
            query, key = clock.turned(position, query), clock.turned(position, key)
        cache.write(key, value)
        keys, values = cache.keys.narrow(2, 0, clock.total), cache.values.narrow(2, 0, clock.total)
        real = clock.real
        mask = None if real is None else real.table
        context = F.scaled_dot_product_attention(query, keys, values, mask, scale=scale, enable_gqa=grouped)
        return output(context.reshape(rows, -1))

    return step


def lean_cross(layer: Attention, cache: Cache) -> Step:
    """Cross-attention to the encoder's keys, all beams of a sentence at once."""
    scale = plain_scale(layer)
    if not isinstance(cache, Fixed) or scale is None or layer.mask.kinds != {"none"} or layer.ordered:
        return lambda x: cache(layer, x.unsqueeze(1)).squeeze(1)
    heads, grouped = layer.shape, layer.shape.n_heads != layer.shape.n_kv_heads
    ask, output = lean(cast(WholeMap, layer.query).linear), lean(layer.output)

    def step(x: Tensor) -> Tensor:
        if cache.source is not None:
            cache.keys, cache.values = cache.first(layer)
        query = ask(x).view(cache.keys.shape[0], -1, heads.n_heads, heads.d_head).transpose(1, 2)
        mask = None if cache.real is None else cache.real.table
        context = F.scaled_dot_product_attention(query, cache.keys, cache.values, mask, scale=scale, enable_gqa=grouped)
        return output(context.transpose(1, 2).reshape(x.shape[0], -1))

    return step


def product(weight: Tensor, bias: Tensor | None) -> Step:
    if is_large(weight):
        return lambda x: few_rows(x, weight, bias)
    return lambda x: F.linear(x, weight, bias)


def joined(maps: list[nn.Linear]) -> Step:
    """Several maps of one vector as one."""
    weights: list[Tensor] = [part.weight for part in maps]
    biases: list[Tensor] = [part.bias for part in maps if part.bias is not None]
    return product(torch.cat(weights), torch.cat(biases) if biases else None)


def plain_scale(layer: Attention) -> float | None:
    """The scale of scores in a softmax of dot products, which torch's kernel takes as it is; None for all else."""
    maps = (layer.query, layer.key, layer.value)
    whole = type(layer) is Attention and joinable(maps)
    fused = layer.weighting.form == "softmax" and layer.kernel in ("auto", "fused")
    plain = layer.similarity.form == "dot" and type(layer.similarity).prepare is Similarity.prepare
    scale = layer.similarity.scale(layer.shape.d_head)
    if not (whole and fused and plain and layer.position.bias_kind == "none" and isinstance(scale, float)):
        return None
    equal = cast(WholeMap, layer.value).linear.weight.shape[0] == layer.shape.n_kv_heads * layer.shape.d_head
    return scale / layer.weighting.temperature if equal else None
