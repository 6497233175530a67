"""Tensor parallelism: several processes divide the maps of every layer, and each computes its heads and hidden numbers.

Attention and feed-forward say themselves how their maps are divided (`divide`): the first ones by outputs, the last one
by inputs, so that processes meet once after each, in a sum. `torch.distributed.tensor` does the rest. Embeddings, norms
and the output are computed by every process, on the same numbers, and so have the same gradients in all of them.
"""

import logging
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from clearhead.attention.layer import Attention
from clearhead.errors import OptionError
from clearhead.model.feedforward import Network
from clearhead.model.sizes import build_for_shapes
from clearhead.training.recipe import Recipe

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def divide_layers(model: nn.Module, mesh: "DeviceMesh") -> None:
    """Keep this process's part of the maps of every layer of a model that is the same in all processes."""
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    # It warns that weights with two axes of processes are gathered along one after the other.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)

    def share_inputs(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # Once for all maps of a layer: the gradients of their common input are then summed once.
        return tuple(DTensor.from_local(x, mesh, [Replicate()]) if isinstance(x, Tensor) else x for x in inputs)

    styles = {"columns": ColwiseParallel, "rows": RowwiseParallel}
    for layer in divisible_layers(model):
        plan = {name: styles[division]() for name, division in layer.divide(mesh.size()).items()}
        parallelize_module(layer, mesh, plan, src_data_rank=None)
        layer.register_forward_pre_hook(share_inputs)


def divisible_layers(model: nn.Module) -> list[Attention | Network]:
    return [module for module in model.modules() if isinstance(module, Attention | Network)]


def check_divisible(recipe: Recipe, count: int) -> None:
    """Raise OptionError if the layers of a recipe's model cannot be divided over so many processes."""
    if recipe.fine_tuning is not None and recipe.fine_tuning.lora is not None:
        raise OptionError("lora: adapters are not divided over processes; leave out tensor, or train without --lora")
    model = build_for_shapes(recipe.model)
    unkeyed = recipe.machine.keyed_dropout is False or recipe.machine.activation_checkpointing
    if unkeyed and any(getattr(module, "dropout", 0) for module in model.modules()):
        raise OptionError(
            "tensor: the processes of a layer must drop the same, which takes --keyed-dropout, and that goes without "
            "--activation-checkpointing; or train with --dropout 0"
        )
    for layer in divisible_layers(model):
        layer.divide(count)
