"""Feed-forward: the same small network at every position. One class a kind."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.cpu_matmul import FEW, find_order, is_large, through
from clearhead.attention.heads import apply_linear, is_hooked, linear
from clearhead.attention.parts import Division
from clearhead.calls import CodeRepr
from clearhead.errors import OptionError
from clearhead.model import activation_gpu
from clearhead.model.fast_step import Explained, FastStep, ModuleStep, linear_step, plain_linear
from clearhead.model.fused_step import FusedFeedForward, FusedLinear, fusible_matrices
from clearhead.registry import kind, register

Vectors = Float[Tensor, "batch n d_model"]


@kind("feed-forward")
@dataclass(frozen=True)
class FeedForward(CodeRepr, ABC):
    """Base class of feed-forward networks: a map up to d_ff numbers, a non-linearity, and a map down to d_model.

    Args:
        d_ff: Hidden width.

    Raises:
        OptionError: If it is not positive.

    >>> import clearhead as ch
    >>> issubclass(ch.model.SwiGLU, ch.model.FeedForward)
    True
    """

    d_ff: int

    def __post_init__(self) -> None:
        if self.d_ff < 1:
            raise OptionError(f"{type(self).__name__}: d_ff must be 1 or more; came {self.d_ff}")

    @abstractmethod
    def build(self, d_model: int) -> "Network":
        """Return the network with its maps, for this width."""


@final
@dataclass(frozen=True)
class ReLU(FeedForward):
    """down(max(0, up(x))), as in the paper.

    Args:
        d_ff: Hidden width.
        bias: Whether the maps have a bias.

    >>> import clearhead as ch
    >>> feed_forward = ch.model.ReLU(64)
    """

    bias: bool = True

    def build(self, d_model: int) -> "Network":
        return Plain(d_model, self, bias=self.bias)

    def activate(self, hidden: Tensor) -> Tensor:
        return F.relu(hidden)


@final
@dataclass(frozen=True)
class GELU(FeedForward):
    """down(gelu(up(x))).

    Args:
        d_ff: Hidden width.
        bias: Whether the maps have a bias.
        form: `exact`, or `tanh` for the approximation that GPT-2 uses.

    Raises:
        OptionError: If a value is not allowed.

    >>> import clearhead as ch
    >>> feed_forward = ch.model.GELU(64, form="tanh")
    """

    bias: bool = True
    form: Literal["exact", "tanh"] = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in get_args(type(self).__annotations__["form"]):
            raise OptionError(f"GELU: form must be exact or tanh; came {self.form!r}")

    def build(self, d_model: int) -> "Network":
        return Plain(d_model, self, bias=self.bias)

    def activate(self, hidden: Tensor) -> Tensor:
        return F.gelu(hidden, approximate="tanh" if self.form == "tanh" else "none")


@final
@dataclass(frozen=True)
class SiLU(FeedForward):
    """down(silu(up(x))) with silu(h) = h · sigmoid(h), also called swish, as in published Marian models.

    Args:
        d_ff: Hidden width.
        bias: Whether the maps have a bias.

    >>> import clearhead as ch
    >>> feed_forward = ch.model.SiLU(64)
    """

    bias: bool = True

    def build(self, d_model: int) -> "Network":
        return Plain(d_model, self, bias=self.bias)

    def activate(self, hidden: Tensor) -> Tensor:
        return F.silu(hidden)


@final
@dataclass(frozen=True)
class SwiGLU(FeedForward):
    """down(silu(gate(x)) · up(x)): a third map, the gate, says how much of each number passes.

    Args:
        d_ff: Hidden width.
        bias: Whether the maps have a bias.

    >>> import clearhead as ch
    >>> feed_forward = ch.model.SwiGLU(64)
    """

    gate: ClassVar[str] = "SiLU"
    bias: bool = False

    def build(self, d_model: int) -> "Network":
        return Gated(d_model, self, bias=self.bias)

    def activate(self, hidden: Tensor) -> Tensor:
        return F.silu(hidden)


@final
@dataclass(frozen=True)
class GeGLU(FeedForward):
    """down(gelu(gate(x)) · up(x)), as in Gemma and later T5 models.

    Args:
        d_ff: Hidden width.
        bias: Whether the maps have a bias.
        form: `exact` or `tanh`, as in GELU.

    Raises:
        OptionError: If a value is not allowed.

    >>> import clearhead as ch
    >>> feed_forward = ch.model.GeGLU(64, form="tanh")
    """

    gate: ClassVar[str] = "GELU"
    bias: bool = False
    form: Literal["exact", "tanh"] = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in get_args(type(self).__annotations__["form"]):
            raise OptionError(f"GeGLU: form must be exact or tanh; came {self.form!r}")

    def build(self, d_model: int) -> "Network":
        return Gated(d_model, self, bias=self.bias)

    def activate(self, hidden: Tensor) -> Tensor:
        return F.gelu(hidden, approximate="tanh" if self.form == "tanh" else "none")


register(ReLU, option="relu")
register(GELU, option="gelu")
register(SiLU, option="silu")
register(SwiGLU, option="swiglu")
register(GeGLU, option="geglu")


def kernel_name(spec: ReLU | GELU | SiLU | SwiGLU | GeGLU) -> str:
    """Return what Triton's kernels call the non-linearity: relu, silu, gelu or gelu_tanh."""
    name = spec.gate if isinstance(spec, SwiGLU | GeGLU) else type(spec).__name__
    return "gelu_tanh" if isinstance(spec, GELU | GeGLU) and spec.form == "tanh" else name.lower()


class Network(Explained):
    """A built feed-forward; `down` is its last map."""

    down: nn.Linear
    spec: FeedForward | None = None
    """What it was built from, to print; None in a network of the user's own that does not say."""
    divided: ClassVar[dict[str, Division]] = {}
    """How several processes divide its maps, such as `{"up": "columns", "down": "rows"}`; empty if they cannot."""

    def divide(self, count: int) -> dict[str, Division]:
        """Return how its maps are divided over `count` processes; OptionError if they cannot be."""
        if not self.divided:
            raise OptionError(f"tensor: {type(self).__name__} does not say how its maps are divided; leave out tensor")
        if self.down.in_features % count:
            raise OptionError(f"tensor: d_ff = {self.down.in_features} cannot be divided over {count} processes")
        return self.divided

    def extra_repr(self) -> str:
        return "" if self.spec is None else repr(self.spec)


class Plain(Network):
    """Two maps with a non-linearity between them."""

    divided: ClassVar[dict[str, Division]] = {"up": "columns", "down": "rows"}

    def __init__(self, d_model: int, spec: ReLU | GELU | SiLU, *, bias: bool) -> None:
        super().__init__()
        self.spec, self.activate, self.nonlinearity = spec, spec.activate, type(spec).__name__
        self.kernel = kernel_name(spec)
        self.up = linear(d_model, spec.d_ff, bias=bias)
        self.down = linear(spec.d_ff, d_model, bias=bias)

    def forward(self, x: Vectors) -> Vectors:
        bias = self.up.bias
        on_gpu = bias is not None and activation_gpu.serves(x)
        if on_gpu and not self.tapped and plain_linear(self.up) and not is_hooked(self.up):
            product = F.linear(x, self.up.weight, bias.detach())
            return self.down(activation_gpu.activate(product, bias, self.kernel))
        pre_activation = self.tap("pre_activation", apply_linear(self.up, x))
        hidden = self.tap("hidden", self.activate(pre_activation))
        return self.tap("out", apply_linear(self.down, hidden))

    def fast_step(self) -> FastStep:
        activate = self.activate
        up, down = linear_step(self.up), linear_step(self.down)
        step = lambda x: down(activate(up(x)))  # noqa: E731
        maps = (self.up, self.down)
        if all(
            plain_linear(part) and is_large(part.weight) and find_order(part.weight.dtype, FEW) is None for part in maps
        ):
            first, second = ((part.weight, part.bias) for part in maps)
            return lambda x: step(x) if len(x) == 1 else through(x, first, activate, second)
        if not (matrices := fusible_matrices((self.up, self.down))):
            return step
        first = FusedLinear(matrices[0], activation=self.kernel)
        return FusedFeedForward(step, first, FusedLinear(matrices[1]))

    @property
    def steps(self) -> tuple[ModuleStep, ...]:
        return (
            ModuleStep("pre_activation", map="up"),
            ModuleStep("hidden", f"{self.nonlinearity}({{pre_activation}})"),
            ModuleStep("out", map="down", of="hidden"),
        )


class Gated(Network):
    """Three maps, one of which gates another."""

    divided: ClassVar[dict[str, Division]] = {"gate": "columns", "up": "columns", "down": "rows"}

    def __init__(self, d_model: int, spec: SwiGLU | GeGLU, *, bias: bool) -> None:
        super().__init__()
        self.spec, self.activate, self.nonlinearity = spec, spec.activate, spec.gate
        self.kernel = kernel_name(spec)
        self.gate = linear(d_model, spec.d_ff, bias=bias)
        self.up = linear(d_model, spec.d_ff, bias=bias)
        self.down = linear(spec.d_ff, d_model, bias=bias)

    def forward(self, x: Vectors) -> Vectors:
        activated = self.tap("activated_gate", self.activate(self.tap("gate", apply_linear(self.gate, x))))
        hidden = self.tap("hidden", activated * self.tap("up", apply_linear(self.up, x)))
        return self.tap("out", apply_linear(self.down, hidden))

    def fast_step(self) -> FastStep:
        gate, up, down = linear_step(self.gate), linear_step(self.up), linear_step(self.down)
        activate = self.activate
        step = lambda x: down(activate(gate(x)) * up(x))  # noqa: E731
        if not (matrices := fusible_matrices((self.gate, self.up, self.down))):
            return step
        first = FusedLinear(matrices[0], up=matrices[1], activation=self.kernel)
        return FusedFeedForward(step, first, FusedLinear(matrices[2]))

    @property
    def steps(self) -> tuple[ModuleStep, ...]:
        return (
            ModuleStep("gate", map="gate"),
            ModuleStep("activated_gate", f"{self.nonlinearity}({{gate}})"),
            ModuleStep("up", map="up"),
            ModuleStep("hidden", "{activated_gate} · {up}"),
            ModuleStep("out", map="down", of="hidden"),
        )
