"""Kernels: ways to compute attention, one file each, held to the reference. `choose` picks one, and says why.

Rooms outside attention import from here alone, and no kernel by its file (import-linter holds it): beside the kernels
there are the sums of kernelized attention, which decoding keeps.
"""

import functools
from dataclasses import dataclass

import torch

from clearhead.attention.inputs import AttentionInputs, KernelFacts
from clearhead.attention.kernels.argmax_gpu import ArgmaxKernel
from clearhead.attention.kernels.base import Context, Kernel
from clearhead.attention.kernels.blockwise import Blockwise, sight
from clearhead.attention.kernels.chunked import Chunked, attend_mapped
from clearhead.attention.kernels.flex import Flex
from clearhead.attention.kernels.fused import Fused
from clearhead.attention.kernels.linear import State, hide, kernelized, map_features
from clearhead.attention.kernels.linear_gpu import LinearKernel
from clearhead.attention.kernels.recurrent import Recurrent
from clearhead.attention.kernels.reference import Reference
from clearhead.attention.modes import autocast_enabled
from clearhead.errors import OptionError, UnsupportedError

__all__ = [
    "KERNELS",
    "Choice",
    "Kernel",
    "State",
    "attend_mapped",
    "check_name",
    "choose",
    "explain_choice",
    "hide",
    "kernelized",
    "map_features",
    "run",
    "sight",
]

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (Fused(), LinearKernel(), ArgmaxKernel(), Chunked(), Blockwise(), Reference(), Flex(), Recurrent())
}
"""Every kernel by name, in the order in which `auto` asks them; the reference serves everything, so none after it."""


@dataclass(frozen=True)
class Choice:
    """The kernel that runs, and why; what `which_kernel` returns.

    Attributes:
        kernel: Name of the kernel.
        reason: Why it was chosen.
        notes: Costs that may surprise.
        refused: By kernel, why it does not run.

    >>> import torch, clearhead as ch
    >>> q = torch.randn(2, 5, 8)
    >>> ch.which_kernel(q, q, q).refused["argmax"]
    'it computes argmax, and no other weighting'
    """

    kernel: str
    reason: str
    notes: tuple[str, ...]
    refused: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self.reason}", *(f"  note: {note}" for note in self.notes)]
        return "\n".join([*lines, *(f"  not {name}: {reason}" for name, reason in self.refused.items())])


def choose(facts: KernelFacts) -> str:
    """Return the first kernel, in the table's order, that does not refuse, or the one it yields to."""
    first = next(kernel for kernel in KERNELS.values() if kernel.refusal(facts) is None)
    preferred = first.yields_to(facts)
    return first.name if preferred is None or KERNELS[preferred].refusal(facts) is not None else preferred


choose_cached = functools.lru_cache(maxsize=4096)(choose)


def check_name(name: str) -> None:
    if name != "auto" and name not in KERNELS:
        raise OptionError(f"unknown kernel {name!r}; there are auto, {', '.join(KERNELS)}")


def kernel_for(name: str, call: AttentionInputs) -> Kernel:
    """Return the kernel of that name, or the one `auto` picks."""
    if name == "auto":
        return KERNELS[(choose if torch.compiler.is_compiling() else choose_cached)(call.facts())]
    facts = call.facts()
    refusal = KERNELS[name].refusal(facts)
    if refusal is not None:
        able = [kernel.name for kernel in KERNELS.values() if kernel.refusal(facts) is None]
        raise UnsupportedError(f"kernel {name!r} cannot do this: {refusal}. These can: auto, {', '.join(able)}")
    return KERNELS[name]


def run(name: str, call: AttentionInputs) -> Context:
    """Return the context by the kernel of that name. Autocast has set the inputs' dtype already, so it ends here."""
    kernel = kernel_for(name, call)
    if not autocast_enabled(call.query):
        return kernel.run(call)
    with torch.autocast(call.query.device.type, enabled=False):
        return kernel.run(call)


def explain_choice(name: str, call: AttentionInputs) -> Choice:
    facts = call.facts()
    kernel = kernel_for(name, call)
    refused = {
        candidate.name: refusal for candidate in KERNELS.values() if (refusal := candidate.refusal(facts)) is not None
    }
    reason = kernel.summary if name == "auto" else f"asked for by name; {kernel.summary}"
    return Choice(kernel=kernel.name, reason=reason, notes=kernel.notes(facts), refused=refused)
