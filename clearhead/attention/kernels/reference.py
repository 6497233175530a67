"""The reference as a kernel: the definition. For kernelized attention that is the quadratic form."""

from typing import ClassVar

from clearhead.attention import reference
from clearhead.attention.inputs import AttentionInputs, KernelFacts
from clearhead.attention.kernels.base import Context, Kernel


class Reference(Kernel):
    name: ClassVar[str] = "reference"
    summary: ClassVar[str] = "the definition; serves everything"

    def refusal(self, facts: KernelFacts) -> str | None:
        return None

    def notes(self, facts: KernelFacts) -> tuple[str, ...]:
        form = "the quadratic form: " if facts.weighting == "kernelized" else ""
        return (f"{form}holds the n_query x n_key scores and weights of every head",)

    def run(self, call: AttentionInputs) -> Context:
        return reference.steps(call).context
