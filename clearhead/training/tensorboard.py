"""TensorBoard: the numbers of the metrics log as event files."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from clearhead.errors import OptionError
from clearhead.extras import how_to_install

GROUPS = {"step": "train", "evaluation": "dev"}
"""The prefix of the curves of a kind of line."""

LEFT_OUT = ("kind", "step")


@final
class TensorBoard:
    """A writer of event files: curves such as train/loss and dev/bleu over the steps.

    Only numbers go there, and those that are finite; texts stay in the metrics log.
    """

    def __init__(self, folder: Path, *, resumed: int = 0) -> None:
        """Open the folder for writing; what was logged after step `resumed`, where a resume starts, is hidden."""
        self.writer = import_writer()(str(folder), purge_step=resumed + 1 if resumed else None, flush_secs=10)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add the numbers of a line of the metrics log; a line that is no step and no evaluation has none."""
        if group := GROUPS.get(line.get("kind", "")):
            inner = {key: value for key, value in line.items() if key not in LEFT_OUT}
            # As a dictionary: the loss stands among the scores of a text once more.
            for name, number in dict(numbers(inner)).items():
                self.writer.add_scalar(f"{group}/{name}", number, line["step"])

    def close(self) -> None:
        """Write what is left and close the file."""
        self.writer.close()


def import_writer() -> Any:
    """Return torch's writer of event files; OptionError where TensorBoard, which it needs, cannot be imported."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OptionError(
            f"TensorBoard is not installed, or too old; install it: {how_to_install('tensorboard')}"
        ) from error
    return SummaryWriter


def numbers(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the names and values of the finite numbers in a line; those under `scores` go by their own names."""
    for key, value in line.items():
        if isinstance(value, Mapping):
            prefix = "" if key == "scores" else f"{key}/"
            yield from ((prefix + name, number) for name, number in numbers(value))
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield key, float(value)
