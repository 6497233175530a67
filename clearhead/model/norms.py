"""Norms: LayerNorm with gamma and beta, and RMSNorm. A spec is built for a width."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.attention.heads import is_hooked
from clearhead.attention.parts import Norm
from clearhead.errors import OptionError
from clearhead.model import layer_norm_gpu
from clearhead.model.fast_step import Explained, FastStep, ModuleStep, StepNorm
from clearhead.registry import register

Vectors = Float[Tensor, "*batch d_model"]


@final
@dataclass(frozen=True)
class LayerNorm(Norm):
    """gamma · (x − mean) / √(variance + epsilon) + beta: mean 0 and variance 1, then a learned scale and shift.

    Args:
        epsilon: Added to the variance.
        bias: False leaves out beta.

    >>> import torch, clearhead as ch
    >>> bool(ch.model.LayerNorm().build(8)(torch.randn(2, 8)).mean().abs() < 1e-6)
    True
    """

    epsilon: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        check_epsilon("LayerNorm", self.epsilon)

    def build(self, d_model: int) -> nn.Module:
        return BuiltLayerNorm(self, d_model)


@final
@dataclass(frozen=True)
class RMSNorm(Norm):
    """gamma · x / √(mean of squares + epsilon): no mean is subtracted, and there is no beta.

    Args:
        epsilon: Added to the mean of squares.
        from_one: Learn gamma − 1, starting at 0, as Gemma does.

    >>> import torch, clearhead as ch
    >>> ch.model.RMSNorm().build(2)(torch.tensor([3.0, 3.0])).round(decimals=3).tolist()
    [1.0, 1.0]
    """

    epsilon: float = 1e-6
    from_one: bool = False

    def __post_init__(self) -> None:
        check_epsilon("RMSNorm", self.epsilon)

    def build(self, d_model: int) -> nn.Module:
        return BuiltRMSNorm(self, d_model)


register(LayerNorm, option="layernorm")
register(RMSNorm, option="rmsnorm")


@final
class FrozenNorm(NamedTuple):
    """A norm with the statistics of one input kept: what remains is linear, plus beta.

    Attributes:
        beta: The learned shift; None if the norm has none.

    >>> import torch, clearhead as ch
    >>> frozen = ch.model.FrozenNorm(scale=torch.ones(3, 1), centered=False)
    """

    scale: Tensor
    """gamma over the deviation, at each place."""
    centered: bool
    """True if the mean of a vector is taken off first."""
    beta: Tensor | None = None

    def carry(self, part: Tensor) -> Tensor:
        """Return what becomes of one summand of the input."""
        return (part - part.mean(-1, keepdim=True) if self.centered else part) * self.scale

    def __call__(self, x: Tensor) -> Tensor:
        return self.carry(x) if self.beta is None else self.carry(x) + self.beta


class BuiltLayerNorm(Explained):
    """LayerNorm with its gamma (ones at the start) and beta (zeros)."""

    def __init__(self, spec: LayerNorm, d_model: int) -> None:
        super().__init__()
        self.epsilon = spec.epsilon
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model)) if spec.bias else None

    def extra_repr(self) -> str:
        return f"{len(self.gamma)}, epsilon={self.epsilon}, bias={self.beta is not None}"

    def forward(self, x: Vectors) -> Vectors:
        if layer_norm_gpu.serves(x):
            return layer_norm_gpu.layer_norm(x, self.gamma, self.beta, self.epsilon)
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.epsilon)

    def with_input(self, x: Vectors) -> tuple[Vectors, Vectors]:
        """Return the norm of x, and x to go on with past the norm: on a GPU one kernel adds up their gradients."""
        if layer_norm_gpu.serves(x) and not is_hooked(self):
            return layer_norm_gpu.layer_norm_and_input(x, self.gamma, self.beta, self.epsilon)
        return self(x), x

    def fast_step(self) -> FastStep:
        shape, gamma, beta, epsilon = self.gamma.shape, self.gamma, self.beta, self.epsilon
        return lambda x: torch.layer_norm(x, shape, gamma, beta, epsilon)

    def freeze(self, x: Vectors) -> FrozenNorm:
        """Return the norm with the mean and deviation of this input."""
        deviation = (x.var(-1, keepdim=True, correction=0) + self.epsilon).sqrt()
        return FrozenNorm(self.gamma / deviation, centered=True, beta=self.beta)

    @property
    def step_norm(self) -> StepNorm:
        return StepNorm("layer", self.gamma, self.beta, self.epsilon)

    def add_step(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the norm of a sum of two vectors, for one position of every row."""
        shape, gamma, beta, epsilon = self.gamma.shape, self.gamma, self.beta, self.epsilon
        if not layer_norm_gpu.serves_step(gamma):
            return lambda x, y: torch.layer_norm(x + y, shape, gamma, beta, epsilon)

        def step(x: Tensor, y: Tensor) -> Tensor:
            if torch.is_grad_enabled() or not x.dtype is y.dtype is gamma.dtype:
                return torch.layer_norm(x + y, shape, gamma, beta, epsilon)
            return layer_norm_gpu.add_layer_norm(x, y, gamma, beta, epsilon)

        return step

    @property
    def steps(self) -> tuple[ModuleStep, ...]:
        return (
            ModuleStep("mean", "the mean of x"),
            ModuleStep("variance", "the mean of (x − mean)²"),
            ModuleStep("normalized", f"({{x}} − {{mean}}) / √({{variance}} + {self.epsilon:g})"),
            ModuleStep("gamma", "learned", learned=True, neutral=1.0),
            *(() if self.beta is None else (ModuleStep("beta", "learned", learned=True),)),
            ModuleStep("out", "{gamma} · {normalized}" + ("" if self.beta is None else " + {beta}")),
        )

    def explain(self, x: Tensor) -> dict[str, Tensor]:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        beta = {} if self.beta is None else {"beta": self.beta}
        normalized = (x - mean) / (variance + self.epsilon).sqrt()
        return {"mean": mean, "variance": variance, "normalized": normalized, "gamma": self.gamma, **beta}


class BuiltRMSNorm(Explained):
    """RMSNorm with its gamma, ones at the start; or with gamma − 1, zeros at the start."""

    def __init__(self, spec: RMSNorm, d_model: int) -> None:
        super().__init__()
        self.epsilon, self.from_one = spec.epsilon, spec.from_one
        self.gamma = nn.Parameter(torch.zeros(d_model) if spec.from_one else torch.ones(d_model))

    def extra_repr(self) -> str:
        return f"{len(self.gamma)}, epsilon={self.epsilon}" + (", from_one=True" if self.from_one else "")

    @property
    def factor(self) -> Tensor:
        """Return what the normalised vector is multiplied by."""
        return 1 + self.gamma if self.from_one else self.gamma

    def forward(self, x: Vectors) -> Vectors:
        return F.rms_norm(x, self.gamma.shape, self.factor, self.epsilon)

    def freeze(self, x: Vectors) -> FrozenNorm:
        """Return the norm with the mean square of this input."""
        return FrozenNorm(self.factor / (x.square().mean(-1, keepdim=True) + self.epsilon).sqrt(), centered=False)

    @property
    def step_norm(self) -> StepNorm:
        return StepNorm("rms", self.factor, None, self.epsilon)

    def fast_step(self) -> FastStep:
        shape, gamma, epsilon = self.gamma.shape, self.factor, self.epsilon
        return lambda x: torch.rms_norm(x, shape, gamma, epsilon)

    @property
    def steps(self) -> tuple[ModuleStep, ...]:
        return (
            ModuleStep("mean_square", "the mean of x²"),
            ModuleStep("normalized", f"{{x}} / √({{mean_square}} + {self.epsilon:g})"),
            ModuleStep("gamma", "1 + what is learned" if self.from_one else "learned", learned=True, neutral=1.0),
            ModuleStep("out", "{gamma} · {normalized}"),
        )

    def explain(self, x: Tensor) -> dict[str, Tensor]:
        mean_square = x.square().mean(-1, keepdim=True)
        normalized = x / (mean_square + self.epsilon).sqrt()
        return {"mean_square": mean_square, "normalized": normalized, "gamma": self.factor}


def check_epsilon(name: str, epsilon: float) -> None:
    if not epsilon >= 0:
        raise OptionError(f"{name}: epsilon must be 0 or more; came {epsilon}")
