"""Arrangements: where the norms and the residual connections stand around attention and feed-forward.

Each gives the connection around one branch of a block, and says what the stack ends with and how its branches start:
with unit-variance input every map gives unit variance (entries normal, variance 1 / inputs), and the last map of each
branch is then multiplied by the arrangement's `gain`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.calls import CodeRepr
from clearhead.errors import OptionError
from clearhead.model.fast_step import FastStep, fast_step_of
from clearhead.model.fused_step import add_branch
from clearhead.model.norms import BuiltLayerNorm, LayerNorm, Norm, RMSNorm
from clearhead.registry import kind, register
from clearhead.taps import Tapped

Vectors = Float[Tensor, "batch n d_model"]
Branch = Callable[[Tensor], Tensor]
GROWTH = 15.0


class ConnectionStep(NamedTuple):
    """One step of a connection: a `norm`, the `branch` itself, or the `add` of its input."""

    box: str
    out: str = ""
    """The tap of what comes out of it; empty for the branch, which taps its own."""
    module: str = ""
    """The attribute that holds the norm."""


class BranchConnection(Tapped, ABC):
    """Residual connection around one branch, with its norm if there is one."""

    steps: ClassVar[tuple[ConnectionStep, ...]] = (ConnectionStep("branch"), ConnectionStep("add", "residual"))
    """Operations in order. Traces name their values by it, and the explorer draws it."""
    reads_input: ClassVar[bool] = False
    """True if the branch reads the block's input and not what earlier branches made of it: `forward` takes both."""

    def __init__(self, dropout: float, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = norm

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}" if self.dropout else ""

    @property
    def passes(self) -> str:
        """Return the tap of the value that the next part of the block reads."""
        return self.steps[-1].out

    @abstractmethod
    def forward(self, x: Vectors, branch: Branch) -> Vectors:
        """Return the vectors after the branch, its residual and its norm."""

    def fast_step(self, branch: FastStep) -> FastStep:
        """Return the branch with its residual and norm, for one position of every row: by default a call of `self`."""
        return lambda x: self(x.unsqueeze(1), lambda inner: branch(inner.squeeze(1)).unsqueeze(1)).squeeze(1)

    def drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout) if self.training and self.dropout else branch


@kind("arrangement")
class Arrangement(CodeRepr, ABC):
    """Base class: how a block connects its parts, that is where the norms and the residuals are.

    >>> import clearhead as ch
    >>> issubclass(ch.model.PreNorm, ch.model.Arrangement)
    True
    """

    @abstractmethod
    def around(self, branch: str, d_model: int, dropout: float) -> BranchConnection:
        """Return the connection around `attention`, `cross` or `feed_forward`."""

    def share_norms(self, attention: BranchConnection, feed_forward: BranchConnection) -> None:
        """Let the connections of a block share modules; by default each has its own."""

    def final(self, d_model: int) -> nn.Module | None:
        """Return the norm after the last block; None if the block ends with one already, or there are none."""
        return None

    def gain(self, n_branches: int, stream: float) -> float:
        """Return the factor of each branch's last map at the start, in a stack of so many branches.

        `stream` is the standard deviation of what comes into the stack.
        """
        return 1.0

    def check(self, *, feed_forward: bool) -> None:
        """Raise if the arrangement does not fit the block."""


@final
@dataclass(frozen=True)
class PreNorm(Arrangement):
    """x + f(norm(x)), and one norm at the end of the stack.

    However many branches there are, together they start with at most `GROWTH` times the variance of the input: enough
    for the output to differ from the last token's embedding, which a tied output would predict again, and little enough
    for equal gradients in the first and the last layer.

    Args:
        norm: The norm.

    >>> import clearhead as ch
    >>> arrangement = ch.model.PreNorm(ch.model.RMSNorm())
    """

    norm: Norm = LayerNorm()

    def around(self, branch: str, d_model: int, dropout: float) -> BranchConnection:
        return NormFirst(dropout, self.norm.build(d_model))

    def final(self, d_model: int) -> nn.Module:
        return self.norm.build(d_model)

    def gain(self, n_branches: int, stream: float) -> float:
        return stream * (GROWTH / n_branches) ** 0.5


@final
@dataclass(frozen=True)
class ParallelNorm(Arrangement):
    """x + attention(norm(x)) + FFN(norm'(x)): both read the block's input, as in GPT-NeoX; and one norm at the end.

    Args:
        norm: The norm.
        shared: Both read the same norm, as in Phi.

    >>> import clearhead as ch
    >>> arrangement = ch.model.ParallelNorm(shared=True)
    """

    norm: Norm = LayerNorm()
    shared: bool = False

    def around(self, branch: str, d_model: int, dropout: float) -> BranchConnection:
        kind = NormOfInput if branch == "feed_forward" else NormFirst
        return kind(dropout, self.norm.build(d_model))

    def share_norms(self, attention: BranchConnection, feed_forward: BranchConnection) -> None:
        if self.shared:
            feed_forward.norm = attention.norm

    def final(self, d_model: int) -> nn.Module:
        return self.norm.build(d_model)

    def gain(self, n_branches: int, stream: float) -> float:
        return PreNorm(self.norm).gain(n_branches, stream)

    def check(self, *, feed_forward: bool) -> None:
        if not feed_forward:
            raise OptionError("ParallelNorm is x + attention(…) + FFN(…): this block has no feed-forward; give it one")


@final
@dataclass(frozen=True)
class SandwichNorm(Arrangement):
    """x + norm'(f(norm(x))), as in Gemma 2, and one norm at the end.

    Args:
        norm: The norm.
        before: False leaves out the inner norm: x + norm'(f(x)), as in OLMo 2.

    >>> import clearhead as ch
    >>> arrangement = ch.model.SandwichNorm(before=False)
    """

    norm: Norm = RMSNorm()
    before: bool = True

    def around(self, branch: str, d_model: int, dropout: float) -> BranchConnection:
        if not self.before:
            return NormOfBranch(dropout, self.norm.build(d_model))
        connection = NormAround(dropout, self.norm.build(d_model))
        connection.norm_after = self.norm.build(d_model)
        return connection

    def final(self, d_model: int) -> nn.Module:
        return self.norm.build(d_model)


@final
@dataclass(frozen=True)
class PostNorm(Arrangement):
    """norm(x + f(x)), as in the paper. Blocks end with a norm, so the stack needs none.

    A norm shrinks the residual by as much as the branch f(x) added. If branches were as large as the residual, a deep
    stack would start by forgetting its tokens; so the more branches there are, the smaller they start.

    Args:
        norm: The norm.
        last: End the stack with one more norm, as torch's nn.Transformer does.

    >>> import clearhead as ch
    >>> arrangement = ch.model.PostNorm(last=True)
    """

    norm: Norm = LayerNorm()
    last: bool = False

    def final(self, d_model: int) -> nn.Module | None:
        return self.norm.build(d_model) if self.last else None

    def around(self, branch: str, d_model: int, dropout: float) -> BranchConnection:
        return NormLast(dropout, self.norm.build(d_model))

    def gain(self, n_branches: int, stream: float) -> float:
        return n_branches**-0.25


@final
@dataclass(frozen=True)
class NoNorm(Arrangement):
    """x + f(x): residuals alone.

    >>> import clearhead as ch
    >>> arrangement = ch.model.NoNorm()
    """

    def around(self, branch: str, d_model: int, dropout: float) -> BranchConnection:
        return ResidualOnly(dropout)

    def gain(self, n_branches: int, stream: float) -> float:
        return n_branches**-0.5


@final
@dataclass(frozen=True)
class SingleResidualNorm(Arrangement):
    """norm(FFN(a) + a) with a = Attention(x): one residual, around the feed-forward, and none around attention.

    Args:
        norm: The norm.

    >>> import clearhead as ch
    >>> arrangement = ch.model.SingleResidualNorm()
    """

    norm: Norm = LayerNorm()

    def around(self, branch: str, d_model: int, dropout: float) -> BranchConnection:
        return NormLast(dropout, self.norm.build(d_model)) if branch == "feed_forward" else BranchOnly(dropout)

    def check(self, *, feed_forward: bool) -> None:
        if not feed_forward:
            raise OptionError("SingleResidualNorm is norm(FFN(a) + a): this block has no feed-forward; give it one")


register(PreNorm, option="pre")
register(PostNorm, option="post")
register(ParallelNorm, option="parallel")
register(SandwichNorm, option="sandwich")
register(SingleResidualNorm, option="single-residual")
register(NoNorm, option="none")


class NormFirst(BranchConnection):
    """The norm before the branch."""

    steps: ClassVar[tuple[ConnectionStep, ...]] = (
        ConnectionStep("norm", "normed", "norm"),
        ConnectionStep("branch"),
        ConnectionStep("add", "residual"),
    )

    def forward(self, x: Vectors, branch: Branch) -> Vectors:
        assert self.norm is not None
        normed, x = self.norm.with_input(x) if type(self.norm) is BuiltLayerNorm else (self.norm(x), x)
        return self.tap("residual", x + self.drop(branch(self.tap("normed", normed))))

    def fast_step(self, branch: FastStep) -> FastStep:
        assert self.norm is not None
        return add_branch(self.norm, branch)


class NormOfInput(BranchConnection):
    """The norm of the block's input before the branch, which is added to what came of the other branches."""

    steps: ClassVar[tuple[ConnectionStep, ...]] = NormFirst.steps
    reads_input: ClassVar[bool] = True

    def forward(self, x: Vectors, branch: Branch, block_input: Vectors | None = None) -> Vectors:
        assert self.norm is not None
        assert block_input is not None
        normed = self.tap("normed", self.norm(block_input))
        return self.tap("residual", x + self.drop(branch(normed)))


class NormOfBranch(BranchConnection):
    """The norm of what the branch gives, before it is added."""

    steps: ClassVar[tuple[ConnectionStep, ...]] = (
        ConnectionStep("branch"),
        ConnectionStep("norm", "normed", "norm"),
        ConnectionStep("add", "residual"),
    )

    def forward(self, x: Vectors, branch: Branch) -> Vectors:
        assert self.norm is not None
        return self.tap("residual", x + self.drop(self.tap("normed", self.norm(branch(x)))))

    def fast_step(self, branch: FastStep) -> FastStep:
        assert self.norm is not None
        norm = fast_step_of(self.norm)
        return lambda x: x + norm(branch(x))


class NormAround(BranchConnection):
    """A norm before the branch, and one of what it gives, before that is added."""

    steps: ClassVar[tuple[ConnectionStep, ...]] = (
        ConnectionStep("norm", "normed", "norm"),
        ConnectionStep("branch"),
        ConnectionStep("norm", "branch_normed", "norm_after"),
        ConnectionStep("add", "residual"),
    )
    norm_after: nn.Module

    def forward(self, x: Vectors, branch: Branch) -> Vectors:
        assert self.norm is not None
        after = self.norm_after(branch(self.tap("normed", self.norm(x))))
        return self.tap("residual", x + self.drop(self.tap("branch_normed", after)))

    def fast_step(self, branch: FastStep) -> FastStep:
        assert self.norm is not None
        before, after = fast_step_of(self.norm), fast_step_of(self.norm_after)
        return lambda x: x + after(branch(before(x)))


class NormLast(BranchConnection):
    """The norm after the residual."""

    steps: ClassVar[tuple[ConnectionStep, ...]] = (
        ConnectionStep("branch"),
        ConnectionStep("add", "residual"),
        ConnectionStep("norm", "normed", "norm"),
    )

    def forward(self, x: Vectors, branch: Branch) -> Vectors:
        assert self.norm is not None
        residual = self.tap("residual", x + self.drop(branch(x)))
        return self.tap("normed", self.norm(residual))

    def fast_step(self, branch: FastStep) -> FastStep:
        assert self.norm is not None
        if isinstance(self.norm, BuiltLayerNorm):
            add = self.norm.add_step()
            return lambda x: add(x, branch(x))
        norm = fast_step_of(self.norm)
        return lambda x: norm(x + branch(x))


class ResidualOnly(BranchConnection):
    """The residual alone."""

    def forward(self, x: Vectors, branch: Branch) -> Vectors:
        return self.tap("residual", x + self.drop(branch(x)))

    def fast_step(self, branch: FastStep) -> FastStep:
        return lambda x: x + branch(x)


class BranchOnly(BranchConnection):
    """The branch alone."""

    steps: ClassVar[tuple[ConnectionStep, ...]] = (ConnectionStep("branch", "out"),)

    def forward(self, x: Vectors, branch: Branch) -> Vectors:
        return self.tap("out", self.drop(branch(x)))

    def fast_step(self, branch: FastStep) -> FastStep:
        return branch
