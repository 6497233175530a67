"""The optimizers: AdamW, and Muon for the linear maps inside blocks beside AdamW for everything else.

Muon makes the momentum of each matrix orthogonal before it is added (Jordan et al., 2024), so that all directions of a
matrix are learned at the same speed. Embeddings, the output, norms and biases are trained by AdamW, as in its paper.
Its steps are scaled to the size of AdamW's (Liu et al., 2025), so that one learning rate and decay serve both.

Lists of tensors are changed in place by one call each, which torch has under private names.
"""

import inspect
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead.training.recipe import Optimizer

Same = TypeVar("Same", bound=Tensor)


def zero_all(tensors: Sequence[Tensor]) -> None:
    """Zero the tensors."""
    if tensors:
        torch._foreach_zero_(list(tensors))  # pyright: ignore[reportPrivateImportUsage]


def copy_all(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into the tensors."""
    if tensors:
        torch._foreach_copy_(list(tensors), list(values))  # pyright: ignore[reportPrivateImportUsage]


def move_all(tensors: Sequence[Tensor], towards: Sequence[Tensor], share: float) -> None:
    """Move the tensors a share of the way towards others."""
    torch._foreach_lerp_(list(tensors), list(towards), share)  # pyright: ignore[reportPrivateImportUsage]


def split_by_mesh(tensors: Sequence[Same]) -> list[list[Same]]:
    """Return the tensors that are sharded over the same mesh of processes together; all in one list if none is."""
    meshes: dict[object, list[Same]] = {}
    for tensor in tensors:
        meshes.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(meshes.values())


class RoundAll(torch.autograd.Function):
    """Weights in a narrower dtype, all by one call; on the way back their gradients go into `grad` by one or two.

    With `fresh` they take the place of what `grad` holds, which need not have been zeroed; else they are added. A
    rounding, a widening and an addition of each weight by itself are three launches: 358 of the 1,286 in a step of a
    translator of 4 + 4 blocks.
    """

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, fresh: bool, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.weights, ctx.fresh = weights, fresh
        ctx.set_materialize_grads(False)
        rounded = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        copy_all(rounded, weights)
        ctx.mark_non_differentiable(
            *(new for new, weight in zip(rounded, weights, strict=True) if not weight.requires_grad)
        )
        return tuple(rounded)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        trained = [(weight, grad) for weight, grad in zip(ctx.weights, grads, strict=True) if weight.requires_grad]
        used = [(parameter, grad) for parameter, grad in trained if grad is not None]
        for weight, _ in used:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        accumulated, new = [weight.grad for weight, _ in used], [grad for _, grad in used]
        if ctx.fresh:
            zero_all([parameter.grad for parameter, grad in trained if grad is None and parameter.grad is not None])
            copy_all(accumulated, new)
        else:
            wide = [torch.empty_like(weight) for weight in accumulated]
            copy_all(wide, new)
            if accumulated:
                torch._foreach_add_(list(accumulated), list(wide))  # pyright: ignore[reportPrivateImportUsage]
        return (None,) * (2 + len(grads))


MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a x + b x³ + c x⁵, which brings singular values from 0 to 1 near 1 if it is applied five times."""
STEP_SIZE = 0.2
"""The root mean square of a step of AdamW, over its learning rate, as Liu et al. measured it."""

Matrices = Float[Tensor, "matrix d_out d_in"]


class AdamW(torch.optim.AdamW):
    """Torch's AdamW, without the wrappers around its methods.

    They keep a compiler away, and import it for that, which takes two seconds. The update is never compiled.
    Torch's fused kernels do not count their writes, by which caches of weights know that they are old: it is done here.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        inspect.unwrap(torch.optim.AdamW.step)(self)
        self.count_write()

    def count_write(self) -> None:
        """Count a write to every parameter, as any other operation in place does."""
        torch.autograd.graph.increment_version([one for group in self.param_groups for one in group["params"]])


class Muon(AdamW):
    """Muon for the parameter groups that say `muon=True`, AdamW for the others. All of a group's are matrices."""

    @torch.no_grad()
    def step(self) -> None:
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group.get("muon")]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if group.get("muon"):
                self.step_matrices(group)

    def step_matrices(self, group: dict[str, Any]) -> None:
        """Move all matrices of a group, those of one shape at once."""
        by_shape: defaultdict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape[parameter.shape].append(parameter)
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
        rate = group["lr"]
        for (d_out, d_in), matrices in by_shape.items():
            gradients = [parameter.grad for parameter in matrices if parameter.grad is not None]
            momenta = [self.state[parameter]["momentum_buffer"] for parameter in matrices]
            move_all(momenta, gradients, 1 - MOMENTUM)
            # Nesterov's step: the momentum as it will be after the same gradient once more.
            ahead = torch.stack(gradients).lerp_(torch.stack(momenta), MOMENTUM)
            steps = orthogonalize(ahead).to(ahead.dtype).mul_(rate * (STEP_SIZE * math.sqrt(max(d_out, d_in))))
            if group["weight_decay"]:
                torch._foreach_mul_(list(matrices), 1 - rate * group["weight_decay"])  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_sub_(list(matrices), list(steps.unbind()))  # pyright: ignore[reportPrivateImportUsage]


def orthogonalize(matrices: Matrices) -> Matrices:
    """Return matrices of the same directions whose singular values are all near 1 (0.7 to 1.2), by Newton-Schulz
    iteration: in bfloat16 on a GPU, where more precision brings nothing, and in float32 on a CPU.
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def hidden_maps(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that Muon trains: of the linear maps inside blocks."""
    inside = (module for name, module in model.named_modules() if "blocks" in name.split("."))
    return [part.weight for part in inside if isinstance(part, nn.Linear) and isinstance(part.weight, nn.Parameter)]


def make_optimizer(
    model: nn.Module, parameters: Sequence[nn.Parameter], optimizer: Optimizer, device: torch.device
) -> AdamW:
    """Return the optimizer of these parameters: fused, matrices decay and vectors do not. On a GPU the learning rate is
    a tensor, which a captured step reads.
    """
    muon_ids = {id(parameter) for parameter in hidden_maps(model)} if optimizer.method == "muon" else set[int]()
    by_muon = [parameter for parameter in parameters if id(parameter) in muon_ids]
    by_adamw = [parameter for parameter in parameters if id(parameter) not in muon_ids]
    decay, meshes = optimizer.weight_decay, split_by_mesh(by_adamw)  # torch updates those of one mesh by one call
    groups = [
        {"params": by_muon, "weight_decay": decay, "muon": True},
        *({"params": [one for one in alike if one.ndim >= 2], "weight_decay": decay} for alike in meshes),
        *({"params": [one for one in alike if one.ndim < 2], "weight_decay": 0.0} for alike in meshes),
    ]
    on_gpu = device.type == "cuda"
    return (Muon if by_muon else AdamW)(
        [group for group in groups if group["params"]],
        lr=torch.tensor(optimizer.lr, device=device) if on_gpu else optimizer.lr,
        betas=optimizer.betas,
        eps=optimizer.epsilon,
        fused=True,
        capturable=on_gpu,
    )
