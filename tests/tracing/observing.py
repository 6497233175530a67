"""Every inner value of a forward pass as it is made there, by its name in a trace: what traces are held against.

Nothing of clearhead.tracing is used: taps are read while the model runs, attentions are explained on the sources they
were called with, and norms are worked out by hand from what went into them.
"""

import contextlib
import re

import torch

from clearhead.attention.heads import LowRankMap, LowRankSliceMap
from clearhead.attention.layer import Attention
from clearhead.model.norms import BuiltLayerNorm, BuiltRMSNorm
from clearhead.taps import watching

BLOCK = re.compile(r"^(encoder\.|decoder\.|)stack\.blocks\.(\d+)\.(.*)$")
MATRICES = ("masked", "weight")


def observed(model, *tokens):
    """From name to value, without the batch axis. Values of heads have the head first, shared ones repeated."""
    taps, calls, normed = {}, {}, {}

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for path, module in model.named_modules(remove_duplicate=False):
            if isinstance(module, Attention):
                hook = module.register_forward_pre_hook(
                    lambda layer, given, named, path=path: (
                        calls.setdefault(path, (layer, given, named)) and None
                    ),  # what a hook returns would be the new arguments
                    with_kwargs=True,
                )
                hooks.callback(hook.remove)
            elif isinstance(module, BuiltLayerNorm | BuiltRMSNorm):
                hook = module.register_forward_pre_hook(
                    lambda norm, given, path=path: normed.setdefault(path, (norm, given[0])) and None
                )
                hooks.callback(hook.remove)
        with watching(model, taps.setdefault):
            model(*tokens)
        found = {}
        for path, value in taps.items():
            name = tap_name(model, path)
            if name is not None:
                found[name] = value[0] if value.ndim > 2 else value
        for path, (layer, given, named) in calls.items():
            places = [named.get(f"{role}_positions") for role in ("query", "key")]
            found |= of_attention(layer, layer.explain(*given, **named), places, site_name(model, path), found)
            if isinstance(layer.value, LowRankMap | LowRankSliceMap):
                found[f"{site_name(model, path)}.latent_value"] = latent_values(layer, given[-1])
        for path, (norm, x) in normed.items():
            at, _, role = path.removesuffix(".norm").rpartition(".")
            if role in ("query", "key"):  # of each head: what comes into it is what the map made
                layer = calls[at][0]
                joint, n_heads = getattr(layer, role).joint, getattr(layer, role).n_heads
                mapped = x[0].unflatten(-1, (n_heads, -1)).transpose(0, 1) if joint else x[0]
                repeats = layer.shape.n_heads // n_heads
                found[f"{site_name(model, at)}.mapped_{role}"] = mapped.repeat_interleave(repeats, 0)
            elif "transform" not in path:
                found |= of_norm(norm, x[0], norm_name(model, path))
    logits = next((name for name in found if name.endswith(".output.logits")), None)
    if logits is not None:
        found[logits.replace("logits", "probability")] = torch.softmax(found[logits], -1)
    return found


def sided(model, side):
    """The side of a path: of a model with one side, that is not in its paths."""
    return side or ("decoder." if type(model).__name__ == "Decoder" else "encoder.")


def tap_name(model, path):
    match = BLOCK.match(path)
    if match is None:
        side, rest = re.match(r"^(encoder\.|decoder\.|)(.*)$", path).groups()
        return sided(model, side) + rest.removeprefix("stack.")
    side, number, rest = match.groups()
    if rest == "out":  # the block's: the same as what its last branch passes on
        return None
    rest = rest.removeprefix("around_")
    role = rest.rpartition(".")[2]
    if role in ("query", "key", "value", "context") and not rest.startswith("feed_forward"):
        rest = f"{rest.rpartition('.')[0]}.tap_{role}"
    return f"{sided(model, side)}{number}.{rest}"


def site_name(model, path):
    side, number, rest = BLOCK.match(path).groups()
    return f"{sided(model, side)}{number}.{rest}"


def norm_name(model, path):
    match = BLOCK.match(path)
    if match is None:
        side, rest = re.match(r"^(encoder\.|decoder\.|)(.*)$", path).groups()
        return sided(model, side) + rest.removeprefix("stack.")
    side, number, rest = match.groups()
    return f"{sided(model, side)}{number}.{rest.removeprefix('around_')}"


def of_attention(layer, steps, places, at, taps):
    """Vectors are as they were tapped, turned by their places where the position does so."""
    found = {f"{at}.{step}": getattr(steps, step)[0] for step in MATRICES}
    found[f"{at}.context"] = taps.pop(f"{at}.tap_context")
    for role, given in zip(("query", "key", "value"), [*places, None], strict=True):
        vectors = taps.pop(f"{at}.tap_{role}")
        vectors = vectors.repeat_interleave(layer.shape.n_heads // len(vectors), 0)
        found[f"{at}.{role}"] = vectors
        if layer.position.turns and role != "value":
            found[f"{at}.projected_{role}"] = vectors
            turned = torch.arange(vectors.shape[1]) if given is None else given
            found[f"{at}.{role}"] = layer.position.turn(vectors.unsqueeze(0), turned)[0]
    # Not from `explain`, which takes a query that may attend to nothing as zero.
    meeting = layer.similarity.prepare(found[f"{at}.query"].unsqueeze(0), found[f"{at}.key"].unsqueeze(0))
    found[f"{at}.score"] = layer.similarity.score(*meeting)[0]
    found[f"{at}.scaled"] = (found[f"{at}.score"] * layer.similarity.scale(layer.shape.d_head)).reshape_as(
        steps.score[0]
    )
    return found


def latent_values(layer, source):
    """V_down of each head on what it reads, head by head: of sliced heads its slice, else the whole vector."""
    down = layer.value.down.detach()
    parts = source[0].chunk(len(down), -1) if isinstance(layer.value, LowRankSliceMap) else [source[0]] * len(down)
    latent = torch.stack([part @ matrix for part, matrix in zip(parts, down, strict=True)])
    return latent.repeat_interleave(layer.shape.n_heads // len(latent), 0)


def of_norm(norm, x, at):
    if isinstance(norm, BuiltRMSNorm):
        square = x.square().mean(-1, keepdim=True)
        parts = {"mean_square": square, "normalized": x * torch.rsqrt(square + norm.epsilon)}
    else:
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        parts = {"mean": mean, "variance": variance, "normalized": (x - mean) * torch.rsqrt(variance + norm.epsilon)}
        parts |= {} if norm.beta is None else {"beta": norm.beta}
    gamma = 1 + norm.gamma if getattr(norm, "from_one", False) else norm.gamma
    return {f"{at}.{name}": value for name, value in (parts | {"gamma": gamma}).items()}
