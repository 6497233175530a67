"""Weights: heads and units as the matrices of a block. Every number is written here, and all else is zero."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.attention.layer import Attention
from clearhead.model.feedforward import Plain
from clearhead.rasp.operations import HeadOperation, HiddenUnit
from clearhead.rasp.spaces import ONE, SINK, Directions


@torch.no_grad()
def clear(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.zero_()


@torch.no_grad()
def write_heads(layer: Attention, heads: Sequence[HeadOperation], directions: Directions) -> None:
    """Write the maps of an attention whose heads do this."""
    maps = (getattr(layer, name).linear.weight for name in ("query", "key", "value"))
    query, key, value = (weight.view(layer.shape.n_heads, -1, layer.d_model) for weight in maps)
    output = layer.output.weight.view(len(directions), layer.shape.n_heads, -1)  # pyright: ignore
    for number, head in enumerate(heads):
        write_scores(head, query[number], key[number], directions)
        read = [directions.of(SINK)] if head.values is None else list(directions.all(head.values))
        for dimension, (source, target) in enumerate(zip(read, directions.all(head.out), strict=True)):
            value[number, dimension, source] = 1
            output[target, number, dimension] = 1


def write_scores(head: HeadOperation, query: Tensor, key: Tensor, directions: Directions) -> None:
    """Write a dimension for the sink and one for each value of the keys: 2 where it fits, all in whole numbers."""
    query[0, directions.of(ONE)] = head.sink_score
    key[0, directions.of(SINK)] = 1
    dimension = 1
    for choice in head.choices:
        for key_value in choice.keys.values:
            key[dimension, directions.of(choice.keys, key_value)] = 1
            for query_value in choice.queries.values:
                if choice.predicate(key_value, query_value):
                    query[dimension, directions.of(choice.queries, query_value)] = 2
            dimension += 1


@torch.no_grad()
def write_units(network: Plain, units: Sequence[HiddenUnit], directions: Directions) -> None:
    up, down = network.up.weight, network.down.weight
    for number, unit in enumerate(units):
        for direction, amount in unit.reads.items():
            up[number, directions.of(*direction)] += amount
        for direction, amount in unit.writes.items():
            down[directions.of(*direction), number] += amount
