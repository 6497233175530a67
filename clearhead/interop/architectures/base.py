"""What every architecture is made of: a configuration as a spec and back, and the names of its tensors."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, final

from torch import Tensor

from clearhead.attention.heads import Heads
from clearhead.attention.positions import NoPosition
from clearhead.attention.weighting import Softmax
from clearhead.errors import OptionError
from clearhead.interop.config import Config
from clearhead.interop.tables import TensorRow
from clearhead.model import GELU, AttentionSpec, FeedForward, NextToken, ReLU, SiLU
from clearhead.model.sizes import Spec
from clearhead.serialization import shorten

ACTIVATIONS: Mapping[str, Callable[[int], FeedForward]] = {
    "gelu": GELU,
    "gelu_new": partial(GELU, form="tanh"),
    "gelu_pytorch_tanh": partial(GELU, form="tanh"),
    "relu": ReLU,
    "silu": SiLU,
    "swish": SiLU,
}
IN_TRAINING = {"dropout": 0.0, "kernel": "auto", "frozen": False}
"""Fields of specs that change how a model is trained or run, not what it computes."""
CLOSE = 1e-9
Kind = TypeVar("Kind")


@final
@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How the models of one `model_type` are read and written."""

    model_type: str
    classes: Mapping[str, str]
    """Their classes, each with the task it is for; the first where config.json names none."""
    spec: Callable[[Config], Spec]
    rows: Callable[[Config], list[TensorRow]]
    """The table of a model: every tensor that is read and written, by its whole name."""
    fields: Callable[[Any, int], dict[str, Any]]
    """What config.json says of a spec for texts of so many tokens; `config_of` checks that it says all of it."""
    context: Callable[[Config], int]
    """Number of tokens of the longest text."""
    prefix: str = ""
    """What stands before the names of the body where the model has an output; files of a bare body may lack it."""
    copies: Callable[[Config], Mapping[str, str]] = lambda config: {}
    """Tensors that some files hold a second time, by name: a table that is tied to another."""
    ignored: tuple[str, ...] = ()
    """How the names of tensors end that hold no weights of this model."""
    computed: tuple[str, ...] = ()
    """Of these, the ends of names of tensors that hold no weights at all: masks and numbers of positions."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Second names that `transformers` takes for a field, each with the first; where both are there, it reads this."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a field that config.json lacks has in their class, where that is not nothing; null is not lacking."""
    causal: bool = True
    """Whether a part of the model sees no later tokens, which `is_causal` would change."""
    values: Callable[[Config], Mapping[str, Tensor]] | None = None
    """Of the computed ones that `transformers` reads, what they are; a file where they differ holds another model."""
    saves_values: bool = False
    """Whether a file must hold them all the same, since `transformers` would miss them."""

    def standardize(self, config: Config) -> Config:
        """Return a configuration as it was read with every field by its first name, and with those that it lacks."""
        values = {**self.defaults, **config.values}
        for other, name in self.aliases.items():
            values[name] = values.get(name) if values.get(other) is None else values[other]
        if self.causal:
            config.require("is_causal", True)
        return Config(values, config.where)

    def config_of(self, spec: Spec, *, context: int = 2048) -> dict[str, Any]:
        """Return the fields of config.json from which this spec is read again.

        OptionError names the part that the architecture cannot say. `context` is the number of tokens of the longest
        text where the spec does not say it, because positions are computed.
        """
        try:
            config = {"model_type": self.model_type, **self.fields(spec, context)}
        except OptionError as error:
            raise OptionError(f"{self.model_type} cannot say this model: {error}") from None
        again = self.spec(Config(config, f"{self.model_type} config"))
        for path, ours, theirs in differences(plain(spec), plain(again), "spec"):
            raise OptionError(
                f"{self.model_type} cannot say {path} = {shorten(ours)}: its models have {shorten(theirs)}"
            )
        return config


def plain(spec: Spec) -> Spec:
    """Return a spec without what matters in training alone, with everything that is left to a default written out."""
    if spec.encoder is not None and spec.decoder is not None:
        encoder, decoder = (plain_part(stack, stack.d_model) for stack in spec.stacks)
        if isinstance(decoder.output, NextToken):  # the pair has the last word
            decoder = replace(decoder, output=replace(decoder.output, tied=spec.tied in ("two", "three")))
        return replace(spec, encoder=encoder, decoder=decoder)
    return plain_part(spec, spec.d_model)


def plain_part(part: Any, d_model: int) -> Any:
    if isinstance(part, tuple):
        return tuple(plain_part(item, d_model) for item in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    values = {
        part_field.name: getattr(part, part_field.name) for part_field in dataclasses.fields(part) if part_field.init
    }
    if isinstance(part, AttentionSpec):
        weighting = part.weighting or Softmax()
        values |= {"heads": part.head_layout, "weighting": weighting, "position": part.position or NoPosition()}
        values |= {"similarity": part.similarity or weighting.similarity}
    if isinstance(part, Heads):
        width = part.shape(d_model).d_head
        bias = part.bias if part.output_bias is None else part.output_bias
        values |= {"kv": part.kv or part.count, "d_head": width, "d_value": part.d_value or width, "output_bias": bias}
    plain_values = {name: IN_TRAINING.get(name, plain_part(value, d_model)) for name, value in values.items()}
    return replace(part, **plain_values)


def differences(ours: Any, theirs: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two specs differ: the path of the part, and what each has there.

    A bias that ours lacks is no difference: `gather` writes zeros for it.
    """
    if path.endswith(("bias", "output_bias")) and ours is False and theirs is True:
        return
    if isinstance(ours, float | int) and isinstance(theirs, float | int):
        if not math.isclose(ours, theirs, rel_tol=CLOSE):
            yield path, ours, theirs
    elif isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        for i, (our_item, their_item) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(our_item, their_item, f"{path}[{i}]")
    elif dataclasses.is_dataclass(ours) and type(ours) is type(theirs):
        for name in (part_field.name for part_field in dataclasses.fields(ours) if part_field.init):
            yield from differences(getattr(ours, name), getattr(theirs, name), f"{path}.{name}")
    elif ours != theirs:
        yield path, ours, theirs


def expect(part: Any, kind: type[Kind] | tuple[type[Kind], ...], where: str) -> Kind:
    """Return a part that must be of one kind, or of one of several; OptionError where it is of another."""
    if not isinstance(part, kind):
        names = " or ".join(accepted.__name__ for accepted in (kind if isinstance(kind, tuple) else (kind,)))
        raise OptionError(f"{where} is {shorten(part)}, and its models have {names}")
    return part


def expect_heads(spec: AttentionSpec) -> Heads:
    """Return the heads of an attention, which must see the whole input."""
    return expect(spec.head_layout, Heads, "attention.heads")


def name_activation(feed_forward: FeedForward | None) -> str:
    """Return what configurations call the activation of a feed-forward with two maps."""
    if isinstance(feed_forward, GELU | ReLU | SiLU):
        with_bias = replace(feed_forward, bias=True)  # one without is one of zeros
        return next(name for name, make in ACTIVATIONS.items() if make(feed_forward.d_ff) == with_bias)
    raise OptionError(f"feed_forward is {feed_forward!r}, and its models have {', '.join(ACTIVATIONS)}")


def pairs(ours: str, theirs: str, *, bias: bool = True, transposed: bool = False) -> list[TensorRow]:
    """Return the rows of a linear map."""
    weight = TensorRow(f"{theirs}.weight", (f"{ours}.weight",), transposed)
    return [weight, TensorRow(f"{theirs}.bias", (f"{ours}.bias",))] if bias else [weight]


def norm(ours: str, theirs: str, *, beta: bool = True) -> list[TensorRow]:
    """Return the rows of a norm: gamma and, for LayerNorm, beta."""
    gamma = TensorRow(f"{theirs}.weight", (f"{ours}.gamma",))
    return [gamma, TensorRow(f"{theirs}.bias", (f"{ours}.beta",))] if beta else [gamma]


def attention(
    ours: str, theirs: str, names: str, *, bias: bool = True, output_bias: bool | None = None
) -> list[TensorRow]:
    """Return the rows of an attention: `names` are theirs of the query, key, value and output map, with blanks."""
    query, key, value, output = (f"{theirs}.{name}" for name in names.split())
    maps = {"query.linear": query, "key.linear": key, "value.linear": value}
    rows = [row for name, their_name in maps.items() for row in pairs(f"{ours}.{name}", their_name, bias=bias)]
    return rows + pairs(f"{ours}.output", output, bias=bias if output_bias is None else output_bias)
