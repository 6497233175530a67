"""TensorBoard: its event files hold the numbers of the log, read back by TensorBoard itself."""

import sys

import numpy as np
import pytest

from clearhead.errors import OptionError
from clearhead.training.tensorboard import TensorBoard
from tests.peers import late

[EventAccumulator] = late("tensorboard.backend.event_processing.event_accumulator", "EventAccumulator")

STEPS = [
    {"kind": "step", "step": step, "epoch": step / 250, "loss": 3.2 / step, "lr": 1e-3, "tokens": 8192 * step}
    for step in (100, 200, 300)
]
EVALUATION = {
    "kind": "evaluation",
    "step": 300,
    "loss": 2.9,
    "scores": {"loss": 2.9, "accuracy": 0.75, "signature": "v", "f1": {"red": 0.5, "step": 0.25}, "confusion": [[1]]},
    "samples": [{"input": "a", "output": "b"}],
    "best": True,
    "seconds": 1.5,
}


def written(folder, lines, *, resumed: int = 0) -> None:
    board = TensorBoard(folder, resumed=resumed)
    for line in lines:
        board.write(line)
    board.close()


def read(folder) -> dict[str, dict[int, list[float]]]:
    """By curve and step, every number there is."""
    events = EventAccumulator(str(folder)).Reload()
    curves = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            curves.setdefault(name, {}).setdefault(event.step, []).append(event.value)
    return curves


@pytest.mark.slow
def test_it_holds_the_numbers_of_the_log(tmp_path):
    written(tmp_path, [*STEPS, EVALUATION])
    curves = read(tmp_path)
    for name in ("epoch", "loss", "lr", "tokens"):
        # TensorBoard keeps single precision.
        assert curves[f"train/{name}"] == {line["step"]: [np.float32(line[name])] for line in STEPS}
    dev = {name: numbers[300] for name, numbers in curves.items() if name.startswith("dev/")}
    assert dev == {
        "dev/loss": [np.float32(2.9)],
        "dev/accuracy": [0.75],
        "dev/f1/red": [0.5],
        "dev/f1/step": [0.25],
        "dev/seconds": [1.5],
    }
    assert len(curves) == 4 + 5


def test_what_is_no_number_and_no_curve_is_left_out(tmp_path):
    lost = {"kind": "step", "step": 1, "loss": None, "grad_norm": float("nan"), "lr": float("inf"), "tokens": 5}
    written(tmp_path, [lost, {"kind": "end", "step": 1, "loss": 1.0}, {"step": 1, "loss": 1.0}])
    assert read(tmp_path) == {"train/tokens": {1: [5]}}


def test_a_resume_hides_what_came_after_the_checkpoint(tmp_path):
    written(tmp_path, STEPS)
    # The files are read in the order of their names, which count seconds.
    (first,) = tmp_path.iterdir()
    first.rename(tmp_path / "events.out.tfevents.0000000001.first")
    written(tmp_path, [STEPS[2] | {"loss": 0.5}], resumed=200)
    assert read(tmp_path)["train/loss"] == {
        100: [np.float32(3.2 / 100)],
        200: [np.float32(3.2 / 200)],
        300: [0.5],
    }


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(OptionError, match=r"pip install 'tensorboard>="):
        TensorBoard(tmp_path)
