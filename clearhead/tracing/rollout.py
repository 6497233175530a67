"""Attention rollout (Abnar and Zuidema, 2020): how much of each token reaches each position over several layers.

A layer adds what attention brings to what was there, so it counts as (A + I) / 2, with A the mean of the heads'
weights; the rollout is the product of the layers. It leaves out the values, the feed-forwards and the norms: it follows
weights, and says nothing of what they carry.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import OptionError
from clearhead.tracing.site import Site
from clearhead.tracing.stopping import check_stopped


def roll_out(sites: Mapping[str, Site], name: str) -> Float[Tensor, "query token"]:
    """Return the rollout through all layers of a side, or through those up to a site's.

    A self-attention (`encoder.2.attention`) is rolled out from the first layer of its side to its own. Of a
    cross-attention it is the mean of that layer's heads, after the rollout of the whole encoder.
    """
    if name in sites and sites[name].slot == "cross":
        return mean_weight(sites[name]) @ roll_out(sites, "encoder")
    side = sites[name].side if name in sites else name
    layers_of_side = [site for site in sites.values() if site.side == side and site.slot == "attention"]
    if not layers_of_side:
        sides = sorted({site.side for site in sites.values()})
        raise OptionError(f"there is no {name!r} to roll out; give a side ({', '.join(sides)}) or {', '.join(sites)}")
    last = sites[name].layer if name in sites else max(site.layer for site in layers_of_side)
    rollout: Tensor | None = None
    for site in sorted(layers_of_side, key=lambda site: site.layer)[: last + 1]:
        check_stopped()
        layer = mean_weight(site)
        layer = (layer + torch.eye(len(layer), dtype=layer.dtype, device=layer.device)) / 2
        rollout = layer if rollout is None else layer @ rollout
    assert rollout is not None
    return rollout


def mean_weight(site: Site) -> Float[Tensor, "query key"]:
    """Return the mean of the heads' weights, one head held at a time."""
    total = site.head[0].weight.clone()
    for head in site.head[1:]:
        total += head.weight
    return total / site.n_heads
