"""Norms: LayerNorm with gamma and beta, and RMSNorm. A spec is built for a width."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.model.fast_step import FastStep
from clearhead.model.steps import Explained, Step
from clearhead.registry import kind, register

__all__ = ["LayerNorm", "Norm", "RMSNorm"]

Vectors = Float[Tensor, "*batch d_model"]


@kind("norm")
class Norm(ABC):
    """Spec of a norm, which brings vectors to a common size."""

    @abstractmethod
    def build(self, d_model: int) -> nn.Module:
        """Return the norm with its learned values, for vectors of this width."""


@final
@dataclass(frozen=True)
class LayerNorm(Norm):
    """gamma · (x − mean) / √(variance + epsilon) + beta: mean 0 and variance 1, then learned. `bias=False`: no beta."""

    epsilon: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        check_epsilon("LayerNorm", self.epsilon)

    def build(self, d_model: int) -> nn.Module:
        return BuiltLayerNorm(self, d_model)


@final
@dataclass(frozen=True)
class RMSNorm(Norm):
    """gamma · x / √(mean of squares + epsilon): no mean is taken off, and there is no beta."""

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        check_epsilon("RMSNorm", self.epsilon)

    def build(self, d_model: int) -> nn.Module:
        return BuiltRMSNorm(self, d_model)


register(LayerNorm, option="layernorm")
register(RMSNorm, option="rmsnorm")


@final
class BuiltLayerNorm(Explained):
    """LayerNorm with its gamma (ones at the start) and beta (zeros)."""

    def __init__(self, spec: LayerNorm, d_model: int) -> None:
        super().__init__()
        self.epsilon = spec.epsilon
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model)) if spec.bias else None

    def forward(self, x: Vectors) -> Vectors:
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, self.epsilon)

    def fast_step(self) -> FastStep:
        shape, gamma, beta, epsilon = self.gamma.shape, self.gamma, self.beta, self.epsilon
        return lambda x: torch.layer_norm(x, shape, gamma, beta, epsilon)

    @property
    def steps(self) -> tuple[Step, ...]:
        return (
            Step("mean", "the mean of x"),
            Step("variance", "the mean of (x − mean)²"),
            Step("normalized", f"({{x}} − {{mean}}) / √({{variance}} + {self.epsilon:g})"),
            Step("gamma", "learned", learned=True),
            *(() if self.beta is None else (Step("beta", "learned", learned=True),)),
            Step("out", "{gamma} · {normalized}" + ("" if self.beta is None else " + {beta}")),
        )

    def explain(self, x: Tensor) -> dict[str, Tensor]:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        beta = {} if self.beta is None else {"beta": self.beta}
        normalized = (x - mean) / (variance + self.epsilon).sqrt()
        return {"mean": mean, "variance": variance, "normalized": normalized, "gamma": self.gamma, **beta}


@final
class BuiltRMSNorm(Explained):
    """RMSNorm with its gamma, ones at the start."""

    def __init__(self, spec: RMSNorm, d_model: int) -> None:
        super().__init__()
        self.epsilon = spec.epsilon
        self.gamma = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Vectors) -> Vectors:
        return F.rms_norm(x, self.gamma.shape, self.gamma, self.epsilon)

    def fast_step(self) -> FastStep:
        shape, gamma, epsilon = self.gamma.shape, self.gamma, self.epsilon
        return lambda x: torch.rms_norm(x, shape, gamma, epsilon)

    @property
    def steps(self) -> tuple[Step, ...]:
        return (
            Step("mean_square", "the mean of x²"),
            Step("normalized", f"{{x}} / √({{mean_square}} + {self.epsilon:g})"),
            Step("gamma", "learned", learned=True),
            Step("out", "{gamma} · {normalized}"),
        )

    def explain(self, x: Tensor) -> dict[str, Tensor]:
        mean_square = x.square().mean(-1, keepdim=True)
        normalized = x / (mean_square + self.epsilon).sqrt()
        return {"mean_square": mean_square, "normalized": normalized, "gamma": self.gamma}


def check_epsilon(name: str, epsilon: float) -> None:
    if not epsilon >= 0:
        raise OptionError(f"{name}: epsilon must be 0 or more; came {epsilon}")
