"""What every architecture is made of: a configuration as a spec and back, and the names of its tensors;
and rotary positions as configurations have them, in `rope_parameters` or in the older fields.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, final

from torch import Tensor

from clearhead.attention.heads import Heads
from clearhead.attention.positions import LinearScaling, Llama3Scaling, NoPosition, Rotary, RotaryScaling, YaRNScaling
from clearhead.attention.weighting import Softmax
from clearhead.errors import OptionError, errors_as
from clearhead.interop.tables import Config, TensorRow
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
        with errors_as(OptionError, f"{self.model_type} cannot say this model"):
            config = {"model_type": self.model_type, **self.fields(spec, context)}
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
    """Return a part that must be of one kind, or of one of several; OptionError if it is of another."""
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


ORIGINAL = "original_max_position_embeddings"


class Rope(NamedTuple):
    """The position of a layer, mostly rotary, and the weighting where its scaling changes that too (YaRN)."""

    position: Rotary | NoPosition
    weighting: Softmax | None = None


def read_rope(config: Config, *, d_head: int | None = None, base: float = 10_000.0) -> Rope:
    """Return the rotary position; OptionError if the scaling is none of these: `dynamic` depends on the text.

    `d_head` is given for models that may turn a part of it alone (`partial_rotary_factor`). `base` is what their
    `rope_theta` is where config.json lacks it.
    """
    # Of both, transformers reads the older.
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise config.error("rope_parameters", f"expected an object; came {parameters!r:.80}")
    older = {name: config.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    values = {**older, ORIGINAL: config.get("max_position_embeddings"), **parameters, "rope_type": kind}
    if config.get(ORIGINAL) is not None:
        values[ORIGINAL] = config.get(ORIGINAL)
    rope = Config(values, f"{config.where}: rope_parameters")
    width = None
    if d_head is None:
        rope.require("partial_rotary_factor", 1.0)
    else:
        width = read_width(rope, d_head)
    scaling = rope.choose("rope_type", SCALINGS)(rope)
    if width is not None and isinstance(scaling, YaRNScaling):
        raise rope.error("rope_type", "yarn is not supported yet where a part of each head is turned")
    position = Rotary(pairing="halves", base=rope.number("rope_theta", base), width=width, scaling=scaling)
    return Rope(position, yarn_weighting(rope) if isinstance(scaling, YaRNScaling) else None)


def read_width(rope: Config, d_head: int) -> int | None:
    """Return how many entries of a head turn; None for all of them."""
    width = int(d_head * rope.number("partial_rotary_factor", 1.0))
    if not 2 <= width <= d_head or width % 2:
        raise rope.error("partial_rotary_factor", f"turns {width} of {d_head} entries; expected an even number of them")
    return None if width == d_head else width


def write_width(position: Rotary, d_head: int) -> float:
    """Return the share of a head that turns, from which `read_width` has the same number of entries."""
    width = position.width or d_head
    return width / d_head if int(d_head * (width / d_head)) == width else (width + 0.5) / d_head


def read_linear(rope: Config) -> LinearScaling:
    return LinearScaling(rope.number("factor"))


def read_llama3(rope: Config) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    return Llama3Scaling(rope.number("factor"), low=low, high=high, original=rope.count(ORIGINAL))


def read_yarn(rope: Config) -> YaRNScaling:
    fast, slow = rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0)
    factor, original, whole = rope.number("factor"), rope.count(ORIGINAL), rope.flag("truncate", True)
    return YaRNScaling(factor, original=original, fast=fast, slow=slow, whole=whole)


def yarn_weighting(rope: Config) -> Softmax:
    """Return the softmax of YaRN's larger scores: cosines and sines times a factor are scores times its square.

    By default it is 0.1 · ln(factor) + 1, and `mscale` over `mscale_all_dim` change it.
    """

    def magnitude(share: float) -> float:
        return max(1.0, 0.1 * share * math.log(rope.number("factor")) + 1)

    if rope.get("attention_factor") is not None:
        larger = rope.number("attention_factor")
    elif rope.get("mscale") and rope.get("mscale_all_dim"):
        larger = magnitude(rope.number("mscale")) / magnitude(rope.number("mscale_all_dim"))
    else:
        larger = magnitude(1.0)
    return Softmax(temperature=larger**-2)


SCALINGS: Mapping[str, Callable[[Config], RotaryScaling | None]] = {
    "default": lambda rope: None,
    "linear": read_linear,
    "llama3": read_llama3,
    "yarn": read_yarn,
}


def write_rope(layer: AttentionSpec) -> dict[str, Any]:
    """Return the fields of a rotary position; OptionError for a scaling that no configuration has a name for."""
    position = expect(layer.position, Rotary, "attention.position")
    weighting = expect(layer.weighting or Softmax(), Softmax, "attention.weighting")
    values: dict[str, Any] = {"rope_theta": position.base}
    match position.scaling:
        case None:
            values |= {"rope_type": "default"}
        case LinearScaling(factor):
            values |= {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor, low, high, original):
            values |= {"rope_type": "llama3", "factor": factor, ORIGINAL: original}
            values |= {"low_freq_factor": low, "high_freq_factor": high}
        case YaRNScaling(factor, original, fast, slow, whole):
            values |= {"rope_type": "yarn", "factor": factor, ORIGINAL: original, "truncate": whole}
            values |= {"beta_fast": fast, "beta_slow": slow, "attention_factor": weighting.temperature**-0.5}
        case other:
            raise OptionError(f"config.json has no name for the scaling {other!r}; there are {', '.join(SCALINGS)}")
    return {"rope_parameters": values}
