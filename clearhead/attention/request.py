"""From a user's arguments to a checked `AttentionInputs`: every wrong request is told here, before any arithmetic."""

from types import UnionType

import torch
from torch import Tensor, nn

from clearhead.attention.inputs import AttentionInputs
from clearhead.attention.masks import Mask, as_mask, check_whole
from clearhead.attention.parts import Part
from clearhead.attention.positions import EmbeddedPosition, Position
from clearhead.attention.score_index import Positions, four_axes
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Weighting
from clearhead.errors import DeviceError, DtypeError, OptionError, ShapeError

__all__ = ["make_call"]

SIMILARITY = Similarity | None
FEATURE_FORMS = ("features", "log features")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def make_call(
    tensors: tuple[Tensor, Tensor, Tensor],
    *,
    similarity: Similarity | None,
    weighting: Weighting,
    position: Position,
    mask: Mask | Tensor | None,
    positions: tuple[Tensor | None, Tensor | None],
    dropout: float = 0.0,
) -> AttentionInputs:
    check_tensors(*tensors)
    check_parts(similarity, weighting, position)
    check_dropout(dropout)
    query, key, value = (four_axes(tensor) for tensor in tensors)
    check_fit((query, key, value), tensors)
    given = given_positions(query, key, positions)
    if position.turns:
        where = given or Positions.aligned(query.shape[2], key.shape[2], query.device)
        query, key = position.turn(query, where.query), position.turn(key, where.key)
    call = AttentionInputs(
        query=query,
        key=key,
        value=value,
        similarity=weighting.similarity if similarity is None else similarity,
        weighting=weighting,
        position=position,
        mask=as_mask(mask),
        given_positions=given,
        dropout=dropout,
    )
    if type(call.mask).check is not Mask.check:
        call.mask.check(call.extent)
    check_made_for("similarity", call.similarity, call)
    check_made_for("position", position, call)
    return call


def check_made_for(name: str, part: Part, call: AttentionInputs) -> None:
    """A part with values of its own must have been built for these heads, on this device."""
    if not isinstance(part, nn.Module):
        return
    for what, made, here in (
        ("heads", part.made_for.n_heads, call.n_heads),
        ("numbers in a head", part.made_for.d_head, call.query.shape[-1]),
    ):
        if made not in (None, here):
            raise ShapeError(
                f"{name}: this {type(part).__name__} was built for {made} {what}, and there are {here}; build it anew"
            )
    own = next(part.parameters(), None)
    if own is not None and own.device != call.query.device:
        raise DeviceError(f"{name} is on {own.device} and query on {call.query.device}; move one of them")


def check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise OptionError(f"dropout is the share of weights left out, from 0 up to but not 1; came {dropout}")


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Each by itself and beside the query; how they fit together is `misfit`'s."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise OptionError(f"{name} must be a torch tensor; came {type(tensor).__name__}")
        if not 2 <= tensor.ndim <= 4:
            raise ShapeError(
                f"{name}: expected (batch, head, n, d), or that without batch, or without both; "
                f"came {tuple(tensor.shape)}"
            )
        if tensor.ndim != query.ndim:
            raise ShapeError(f"{name} has {tensor.ndim} axes and query {query.ndim}; give all three the same axes")
        if tensor.dtype not in FLOATS:
            raise DtypeError(f"{name}: expected float16, bfloat16, float32 or float64; came {tensor.dtype}")
        if tensor.dtype != query.dtype:
            raise DtypeError(f"{name} is {tensor.dtype} and query {query.dtype}; convert one of them")
        if tensor.device != query.device:
            raise DeviceError(f"{name} is on {tensor.device} and query on {query.device}; move one of them")
        if 0 in tensor.shape[-3:]:
            raise ShapeError(
                f"{name}: an axis is empty, {tuple(tensor.shape)}; attention needs at least one of each "
                "(only the batch may be empty)"
            )


def check_fit(whole: tuple[Tensor, Tensor, Tensor], given: tuple[Tensor, Tensor, Tensor]) -> None:
    problem = misfit(*(tensor.shape for tensor in whole))
    if problem is not None:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(("query", "key", "value"), given, strict=True))
        raise ShapeError(f"{problem}: {shapes}")


def misfit(query: torch.Size, key: torch.Size, value: torch.Size) -> str | None:
    if not query[0] == key[0] == value[0]:
        return "the batch sizes must be the same"
    if key[1] != value[1]:
        return "key and value must have the same number of heads"
    if query[1] % key[1]:
        return "the key heads must divide the query heads"
    if query[3] != key[3]:
        return "query and key vectors must have the same width"
    if key[2] != value[2]:
        return "there must be one value for each key"
    return None


def check_parts(similarity: Similarity | None, weighting: Weighting, position: Position) -> None:
    if isinstance(position, EmbeddedPosition):
        raise OptionError(
            f"{type(position).__name__} is added to the embeddings, before attention: "
            "x + spec.embed(d_model)(n). Inside attention there are Rotary, ALiBi and T5Bias"
        )
    check_kind("similarity", similarity, SIMILARITY, "clearhead.similarity.Cosine()")
    check_kind("weighting", weighting, Weighting, "clearhead.weighting.Softmax()")
    check_kind("position", position, Position, "clearhead.positions.Rotary()")
    if weighting.form == "kernelized":
        check_kernelized(similarity, position)
        logs = weighting.amounts == "exponential"
        if similarity is not None and (similarity.form == "log features") != logs:
            raise OptionError(
                f"{weighting!r} has another similarity, on {'logarithms' if logs else 'products'} of features: leave "
                "similarity out, or take weighting.similarity"
            )
    elif similarity is not None and similarity.form in FEATURE_FORMS:
        raise OptionError("this similarity is a product of features, which belongs to weighting.Kernelized")


def check_kind(name: str, part: object, kind: type | UnionType, example: str) -> None:
    if not isinstance(part, kind):
        raise OptionError(
            f"{name} must be a part such as {example}, an instance and not its class or name; came {part!r}"
        )


def check_kernelized(similarity: Similarity | None, position: Position) -> None:
    if similarity is not None and similarity.form not in FEATURE_FORMS:
        raise OptionError(
            f"Kernelized attention defines its own score φ(q)·φ(k): leave similarity out (came {similarity!r}), "
            "or choose its features"
        )
    if position.bias_kind != "none":
        raise OptionError(
            f"Kernelized attention has no score to add a bias to, and {type(position).__name__} is one: "
            "use Rotary, or positions added to the embeddings"
        )


def given_positions(query: Tensor, key: Tensor, positions: tuple[Tensor | None, Tensor | None]) -> Positions | None:
    """The positions a user gave, the other side's default beside them; None if both are the default."""
    if positions[0] is None and positions[1] is None:
        return None
    default = Positions.aligned(query.shape[2], key.shape[2], query.device)
    return Positions(
        query=checked("query_positions", positions[0], default.query, query),
        key=checked("key_positions", positions[1], default.key, query),
    )


def checked(name: str, given: Tensor | None, default: Tensor, query: Tensor) -> Tensor:
    if given is None:
        return default
    batch, n = query.shape[0], default.shape[0]
    if not isinstance(given, Tensor):
        raise OptionError(f"{name} must be a torch tensor; came {type(given).__name__}. Use torch.tensor(...)")
    check_whole(name, given)
    if given.device != query.device:
        raise DeviceError(f"{name} is on {given.device} and query on {query.device}; move one of them")
    if given.shape not in ((n,), (batch, n), (1, n)):
        raise ShapeError(f"{name}: expected ({n},) or ({batch}, {n}); came {tuple(given.shape)}")
    return given.long()
