"""`AttentionOptions`: from a user's arguments to checked `AttentionInputs`; every wrong one raises here."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import UnionType

from torch import Tensor, nn

from clearhead.attention.inputs import FLOATS, AttentionInputs, ordinary
from clearhead.attention.kernels import check_name
from clearhead.attention.kernels.blockwise import BLOCK_NUMBERS, block_rows, sight
from clearhead.attention.mask_numbers import check_whole
from clearhead.attention.mask_rules import Mask, as_mask
from clearhead.attention.modes import can_read
from clearhead.attention.parts import Part
from clearhead.attention.positions import EmbeddedPosition, Position
from clearhead.attention.score_index import Positions, four_axes
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Weighting
from clearhead.errors import DeviceError, DtypeError, OptionError, ShapeError

SIMILARITY = Similarity | None
FEATURE_FORMS = ("features", "log features")


# Compared by identity, since torch 2.11's compiler hashes such an object before its fields are set.
@dataclass(frozen=True, eq=False)
class AttentionOptions:
    """The parts of one attention and how to run it, checked when it is made.

    `attend`, `explain`, `which_kernel` and the layer each make one, and get from it the `inputs` of a kernel.
    """

    similarity: Similarity | None
    """None: the weighting's own."""
    weighting: Weighting
    position: Position
    mask: Mask | Tensor | None
    dropout: float = 0.0
    kernel: str = "auto"

    def __post_init__(self) -> None:
        check_parts(self.similarity, self.weighting, self.position)
        check_dropout(self.dropout)
        check_name(self.kernel)

    def inputs(
        self,
        tensors: tuple[Tensor, Tensor, Tensor],
        positions: tuple[Tensor | None, Tensor | None] = (None, None),
        split: SequenceSplit | None = None,
    ) -> AttentionInputs:
        """Return what a kernel is given, after checking the tensors, the positions and the mask against each other.

        With a `split` the tensors hold this process's part of sequences, and the mask is that of whole ones.
        """
        check_tensors(*tensors)
        query, key, value = tensors
        if query.ndim != 4:
            query, key, value = four_axes(query), four_axes(key), four_axes(value)
        explicit = given_positions(query, key, positions)
        position, learned = self.position, isinstance(self.position, nn.Module)
        if position.turns and not learned:
            turned_at = explicit or default_positions(query, key, split)
            query, key = position.turn(query, turned_at.query), position.turn(key, turned_at.key)
        weighting, mask = self.weighting, as_mask(self.mask)
        similarity = weighting.similarity if self.similarity is None else self.similarity
        inputs = AttentionInputs(query, key, value, similarity, weighting, position, mask, explicit, self.dropout)
        if type(mask).check is not Mask.check:
            mask.check(inputs.extent if split is None else inputs.extent._replace(n_query=split.n, n_key=split.n))
        check_made_for("similarity", similarity, inputs)
        check_made_for("weighting", weighting, inputs)
        check_made_for("position", position, inputs)
        return turn_by_learned(inputs, split) if learned and position.turns else inputs


def default_positions(query: Tensor, key: Tensor, split: SequenceSplit | None) -> Positions:
    if split is not None:
        return split.positions(query.device)
    return Positions.aligned(query.shape[2], key.shape[2], query.device)


def turn_by_learned(inputs: AttentionInputs, split: SequenceSplit | None) -> AttentionInputs:
    """Return the inputs turned by a position with parameters: NaN that the mask hides would reach their gradient.

    Of a split sequence nothing is zeroed: whether a key is seen depends on the queries of other processes.
    """
    readable = can_read(inputs.query) and can_read(inputs.key)
    harmless = inputs.unmasked or (readable and ordinary(inputs.query) and ordinary(inputs.key))
    if not harmless and split is None:
        inputs = inputs.set_hidden_to_zero(sight(inputs, block_rows(inputs, BLOCK_NUMBERS)))
    positions = inputs.given_positions or default_positions(inputs.query, inputs.key, split)
    turn = inputs.position.turn
    return inputs.replace(query=turn(inputs.query, positions.query), key=turn(inputs.key, positions.key))


def check_made_for(name: str, part: Part, inputs: AttentionInputs) -> None:
    """Check that a part with learned values was built for these heads, on this device."""
    if not isinstance(part, nn.Module):
        return
    for unit, expected, actual in (
        ("heads", part.made_for.n_heads, inputs.n_heads),
        ("numbers in a head", part.made_for.d_head, inputs.query.shape[-1]),
    ):
        if expected not in (None, actual):
            raise ShapeError(
                f"{name}: this {type(part).__name__} was built for {expected} {unit}, and there are {actual}; "
                "build it anew"
            )
    parameter = next(part.parameters(), None)
    if parameter is not None and parameter.device != inputs.query.device:
        raise DeviceError(f"{name} is on {parameter.device} and query on {inputs.query.device}; move one of them")


def check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise OptionError(f"dropout is the share of weights left out, from 0 up to but not 1; came {dropout}")


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check each tensor by itself, beside the query, and that the three shapes fit together."""
    named = (("query", query), ("key", key), ("value", value))
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise OptionError(f"{name} must be a torch tensor; came {type(tensor).__name__}")
    ndim, dtype, device, shapes = query.ndim, query.dtype, query.device, []  # a tensor's attributes are slow to read
    for name, tensor in named:
        shape, tensor_dtype = tuple(tensor.shape), tensor.dtype
        if not 2 <= len(shape) <= 4:
            raise ShapeError(
                f"{name}: expected (batch, head, n, d), or that without batch, or without both; came {shape}"
            )
        if len(shape) != ndim:
            raise ShapeError(f"{name} has {len(shape)} axes and query {ndim}; give all three the same axes")
        if tensor_dtype not in FLOATS:
            raise DtypeError(f"{name}: expected float16, bfloat16, float32 or float64; came {tensor_dtype}")
        if tensor_dtype != dtype:
            raise DtypeError(f"{name} is {tensor_dtype} and query {dtype}; convert one of them")
        if tensor.device != device:
            raise DeviceError(f"{name} is on {tensor.device} and query on {device}; move one of them")
        if 0 in shape[-3:]:
            raise ShapeError(
                f"{name}: an axis is empty, {shape}; attention needs at least one of each (only the batch may be empty)"
            )
        shapes.append(shape)
    problem = misfit(*((1, 1, *shape)[-4:] for shape in shapes))
    if problem is not None:
        raise ShapeError(f"{problem}: query {shapes[0]}, key {shapes[1]}, value {shapes[2]}")


def misfit(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> str | None:
    """Say why shapes `(batch, head, n, d)` do not fit together; None if they do."""
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
    """Return the positions a user gave, the other side's default beside them; None if both are the default."""
    if positions[0] is None and positions[1] is None:
        return None
    default = Positions.aligned(query.shape[2], key.shape[2], query.device)
    return Positions(
        query=check_positions("query_positions", positions[0], default.query, query),
        key=check_positions("key_positions", positions[1], default.key, query),
    )


def check_positions(name: str, positions: Tensor | None, default: Tensor, query: Tensor) -> Tensor:
    """Return the positions given, as int64, after checking them; the default where none were given."""
    if positions is None:
        return default
    batch, n = query.shape[0], default.shape[0]
    if not isinstance(positions, Tensor):
        raise OptionError(f"{name} must be a torch tensor; came {type(positions).__name__}. Use torch.tensor(...)")
    check_whole(name, positions)
    if positions.device != query.device:
        raise DeviceError(f"{name} is on {positions.device} and query on {query.device}; move one of them")
    if positions.shape not in ((n,), (batch, n), (1, n)):
        raise ShapeError(f"{name}: expected ({n},) or ({batch}, {n}); came {tuple(positions.shape)}")
    return positions.long()
