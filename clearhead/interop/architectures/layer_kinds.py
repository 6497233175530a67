"""How layers of one model differ in configurations: their windows, their positions, and the scale and cap of scores."""

import math
from typing import Any

from clearhead.attention.masks import Mask, Window
from clearhead.attention.positions import NoPosition, Rotary
from clearhead.attention.similarity import CappedDot, ScaledDot, Similarity
from clearhead.errors import OptionError
from clearhead.interop.architectures.base import expect
from clearhead.interop.architectures.rope import Rope, read_rope, write_rope
from clearhead.interop.config import Config
from clearhead.model.blocks import AttentionSpec

FULL, SLIDING = "full_attention", "sliding_attention"


def read_same_rope(config: Config) -> list[Rope]:
    return [read_rope(config)] * config.layers("num_hidden_layers")


def write_first_rope(layers: list[AttentionSpec]) -> dict[str, Any]:
    return write_rope(layers[0])


def mistral_windows(config: Config) -> list[int | None]:
    window = None if config.get("sliding_window") is None else config.count("sliding_window")
    return [window] * config.layers("num_hidden_layers")


def qwen_windows(config: Config) -> list[int | None]:
    """Return the window of the layers that have one: those in `layer_types`, or all from `max_window_layers` on."""
    count, types = config.layers("num_hidden_layers"), config.get("layer_types")
    on = config.flag("use_sliding_window", False) and config.get("sliding_window") is not None
    window = config.count("sliding_window") if on else None
    if types is None:
        first = config.get("max_window_layers")
        first = 28 if first is None else config.count("max_window_layers") if first else 0
        return [window if i >= first else None for i in range(count)]
    kinds = read_types(config, [])
    if window is None and SLIDING in kinds:
        raise config.error("layer_types", "has sliding_attention, and there is no sliding_window in use")
    return [window if kind == SLIDING else None for kind in kinds]


def read_types(config: Config, default: list[str]) -> list[str]:
    """Return whether each layer has a window, by `layer_types`."""
    count, types = config.layers("num_hidden_layers"), config.get("layer_types")
    types = default if types is None else types
    if not isinstance(types, list) or len(types) != count or any(kind not in (FULL, SLIDING) for kind in types):
        raise config.error("layer_types", f"expected {count} of {FULL} or {SLIDING}")
    return types


def gemma_types(config: Config) -> list[str]:
    """Return whether each layer of a Gemma 2 or 3 has a window: all but every second, or every sixth."""
    count, every = config.layers("num_hidden_layers"), config.count("sliding_window_pattern", 6)
    if config.get("model_type") == "gemma2":
        every = 2
    return read_types(config, [SLIDING if (i + 1) % every else FULL for i in range(count)])


def gemma_windows(config: Config) -> list[int | None]:
    return [config.count("sliding_window") if kind == SLIDING else None for kind in gemma_types(config)]


def write_gemma(masks_of_layers: list[Mask | None]) -> dict[str, Any]:
    fields = write_qwen(masks_of_layers)
    return {"sliding_window": fields["sliding_window"] or 4096, "layer_types": fields["layer_types"]}


def read_gemma_similarity(config: Config) -> Similarity:
    """Return the dot product by `query_pre_attn_scalar`, below a cap where there is one."""
    factor = config.number("query_pre_attn_scalar") ** -0.5
    if config.get("model_type") == "gemma3_text":
        config.require("attn_logit_softcapping")  # which transformers does not read in it
    if config.get("attn_logit_softcapping") is None:
        return ScaledDot(factor)
    return CappedDot(config.number("attn_logit_softcapping"), factor)


def write_gemma_similarity(layer: AttentionSpec, d_head: int) -> dict[str, Any]:
    part = expect(layer.similarity or ScaledDot(), (ScaledDot, CappedDot), "attention.similarity")
    factor = d_head**-0.5 if part.factor is None else part.factor
    scalar = factor**-2
    whole = round(scalar)
    return {
        "query_pre_attn_scalar": whole if math.isclose(whole, scalar, rel_tol=1e-9) else scalar,
        "attn_logit_softcapping": part.cap if isinstance(part, CappedDot) else None,
    }


def smollm_ropes(config: Config) -> list[Rope]:
    """Return the positions of each layer: by default every fourth has none."""
    count, said = config.layers("num_hidden_layers"), config.get("no_rope_layers")
    if said is None:
        every = config.count("no_rope_layer_interval", 4)
        said = [int((i + 1) % every != 0) for i in range(count)]
    if not isinstance(said, list) or len(said) != count or any(one not in (0, 1) for one in said):
        raise config.error("no_rope_layers", f"expected {count} of 0 (without positions) or 1")
    rope = read_rope(config, base=2_000_000.0)
    return [rope if turned else Rope(NoPosition()) for turned in said]


def write_smollm_ropes(layers: list[AttentionSpec]) -> dict[str, Any]:
    turned = [isinstance(layer.position, Rotary) for layer in layers]
    first = next((layer for layer, turns in zip(layers, turned, strict=True) if turns), None)
    if first is None:
        raise OptionError("attention.position is none in every layer, and its models have Rotary in some")
    return {**write_rope(first), "no_rope_layers": [int(turns) for turns in turned]}


def smollm_windows(config: Config) -> list[int | None]:
    """Return the window of each layer: by default those without positions have it."""
    on = config.flag("use_sliding_window", False) and config.get("sliding_window") is not None
    window = config.count("sliding_window") if on else None
    plain = [isinstance(rope.position, NoPosition) for rope in smollm_ropes(config)]
    types = read_types(config, [SLIDING if on and not_turned else FULL for not_turned in plain])
    if window is None and SLIDING in types:
        raise config.error("layer_types", "has sliding_attention, and there is no sliding_window in use")
    return [window if kind == SLIDING else None for kind in types]


def gemma3_ropes(config: Config) -> list[Rope]:
    """Return the positions of each layer: those with a window have their own."""
    said = config.get("rope_parameters") or {}
    if not isinstance(said, dict) or any(not isinstance(said.get(kind) or {}, dict) for kind in (FULL, SLIDING)):
        raise config.error("rope_parameters", f"expected an object with {FULL} and {SLIDING}; came {said!r:.80}")
    scaling = config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise config.error("rope_scaling", f"expected an object; came {scaling!r:.80}")
    values = {name: value for name, value in config.values.items() if name not in ("rope_scaling", "rope_theta")}
    bases = {FULL: config.get("rope_theta") or 1_000_000.0, SLIDING: config.get("rope_local_base_freq") or 10_000.0}

    def read_kind(kind: str) -> Rope:
        scaled = scaling if kind == FULL else {}
        parameters = {"rope_theta": bases[kind], **(said.get(kind) or {}), **scaled}
        return read_rope(Config({**values, "rope_parameters": parameters}, f"{config.where}: {kind}"))

    ropes = {kind: read_kind(kind) for kind in (FULL, SLIDING)}
    return [ropes[kind] for kind in gemma_types(config)]


def write_gemma3_ropes(layers: list[AttentionSpec]) -> dict[str, Any]:
    kinds = {SLIDING if isinstance(layer.mask, Window) else FULL: layer for layer in layers}
    return {"rope_parameters": {kind: write_rope(layer)["rope_parameters"] for kind, layer in kinds.items()}}


def write_mistral(masks_of_layers: list[Mask | None]) -> dict[str, Any]:
    return {"sliding_window": masks_of_layers[0].left + 1 if isinstance(masks_of_layers[0], Window) else None}


def write_qwen(masks_of_layers: list[Mask | None]) -> dict[str, Any]:
    sizes = [mask.left + 1 if isinstance(mask, Window) else None for mask in masks_of_layers]
    return {
        "use_sliding_window": any(sizes),
        "sliding_window": next(filter(None, sizes), None),
        "layer_types": ["full_attention" if size is None else "sliding_attention" for size in sizes],
    }
