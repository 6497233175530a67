"""torch.export: the forward pass as one program (.pt2) that `torch.export.load` runs without code of ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, final

import torch

from clearhead.interop.export.base import ExportFigures, Format, blocked_segments
from clearhead.interop.export.graphs import Forward, freeze_for_graph
from clearhead.interop.export.samples import draw_samples, largest
from clearhead.interop.peers import peer_version
from clearhead.model.sizes import Spec
from clearhead.training.run import Run

TOLERANCE = 1e-4
PROGRAM = "model.pt2"
DYNAMIC = torch.export.Dim.DYNAMIC
SHAPES = {"tokens": (2, 5), "source": (2, 5), "target": (2, 4), "lengths": (2,), "source_lengths": (2,)}
"""Of the example that is followed. No axis is 0 or 1: torch would take it for a constant."""


@final
class TorchProgram(Format):
    """model.pt2: tokens in, logits out, for any batch and length."""

    name = "torch"
    about = "torch.export: the forward pass of any model as one program"

    def blocks(self, spec: Spec, task: str, tokenizers: Sequence[str] = ()) -> list[str]:
        return blocked_segments(spec, task)

    @torch.no_grad()
    def write(self, run: Run, folder: Path, quantization: str) -> None:
        graph = Forward(cast(Any, freeze_for_graph(run.model, run.task.context)))
        example = tuple(torch.full(SHAPES[name], 4 if "lengths" in name else 0) for name in graph.inputs)
        axes = [dict.fromkeys(range(len(SHAPES[name])), DYNAMIC) for name in graph.inputs]
        program = torch.export.export(
            graph, example, dynamic_shapes=(axes[0], *([tuple(axes[1:])] if axes[1:] else []))
        )
        torch.export.save(program, folder / PROGRAM)

    @torch.inference_mode()
    def check(self, run: Run, folder: Path, quantization: str) -> ExportFigures:
        samples = draw_samples(run)
        sides = [samples.padded(side) for side in ("encoder", "decoder") if getattr(samples, side)]
        if run.model.decoder is None:
            inputs = sides[0]
        elif run.model.encoder is None:
            inputs = (sides[0][0],)
        else:
            inputs = (sides[0][0], sides[1][0], sides[0][1])
        ours = Forward(cast(Any, run.model))(*inputs)
        theirs = torch.export.load(folder / PROGRAM).module()(*inputs)
        return ExportFigures(
            peer=peer_version("torch"),
            texts=str(samples),
            numbers=f"{ours.numel()} outputs",
            difference=largest([ours], [theirs]),
            tolerance=TOLERANCE,
        )
