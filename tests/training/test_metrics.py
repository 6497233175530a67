"""The metrics log: what is written is read, after a resume and after a kill at any byte; files of TensorBoard."""

import json
import math
import os
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.errors import OptionError, RunError
from clearhead.training.reporting import MetricsLog, TensorBoard, read_metrics
from tests.peers import late

STEP = {"kind": "step", "step": 100, "loss": 3.2, "lr": 0.001, "seconds": 12.3, "tokens_per_second": 66000.0}
EVALUATION = {
    "kind": "evaluation",
    "step": 100,
    "loss": 2.9,
    "scores": {"bleu": 21.3},
    "samples": [{"input": "schön\u2028", "output": "nice 好\n", "reference": "\udcff"}],
    "best": True,
    "seconds": 1.0,
    "memory_mb": 512,
}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def written(path, lines, *, size: int = 0) -> int:
    log = MetricsLog(path, size=size)
    for line in lines:
        log.write(line)
    end = log.size
    log.close()
    return end


def without_infinities(value):
    """By JSON's own parser, which can be told what to make of them."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def test_lines_are_there_as_soon_as_they_are_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for count, line in enumerate([STEP, EVALUATION, STEP], start=1):
        log.write(line)
        assert len(read_metrics(path)) == count
        assert log.size == path.stat().st_size
    log.sync()
    log.close()
    log.close()
    assert read_metrics(path) == [STEP, EVALUATION, STEP]


def test_a_line_is_compact_readable_and_in_the_order_given(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(path, [{"kind": "step", "b": 1, "a": [0.5, (True, None)], "text": "schön 好\n"}])
    assert path.read_bytes().decode() == '{"kind":"step","b":1,"a":[0.5,[true,null]],"text":"schön 好\\n"}\n'


def test_what_is_not_finite_is_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(path, [{"loss": math.nan, "scores": {"bleu": math.inf}, "list": [-math.inf, 1.0]}])
    assert read_metrics(path) == [{"loss": None, "scores": {"bleu": None}, "list": [None, 1.0]}]


@given(st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=4))
@pytest.mark.slow
def test_whatever_is_written_is_read(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    written(path, lines)
    assert read_metrics(path) == without_infinities(lines)


def test_a_resume_cuts_back_what_came_after_the_checkpoint(tmp_path):
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    written(whole, [STEP, EVALUATION, STEP])
    size = written(resumed, [STEP, EVALUATION])
    written(resumed, [{"kind": "step", "step": 999}] * 3, size=size)
    assert len(read_metrics(resumed)) == 5
    written(resumed, [STEP], size=size)
    assert resumed.read_bytes() == whole.read_bytes()


def test_size_zero_is_a_new_file_and_what_was_there_is_set_aside(tmp_path):
    path, told = tmp_path / "metrics.jsonl", []
    written(path, [])
    for number, line in enumerate([STEP, EVALUATION], start=1):
        log = MetricsLog(path, log=told.append)
        log.write(line)
        log.close()
        assert len(told) == number - 1
    log = MetricsLog(path, log=told.append)
    assert log.size == 0
    log.close()
    assert read_metrics(path) == []
    assert read_metrics(tmp_path / "metrics.1.jsonl") == [STEP]
    assert read_metrics(tmp_path / "metrics.2.jsonl") == [EVALUATION]
    assert told[1] == (
        f"{path}: holds the log of steps that are made again; it is set aside as metrics.2.jsonl, and a new log begins"
    )


@pytest.mark.parametrize("size", [1, -1, 0, 10_000])
def test_a_file_that_does_not_fit_the_checkpoint_is_set_aside(tmp_path, size):
    """Shorter, or with no line that ends there; the third is a file that has lost its last byte."""
    path, told = tmp_path / "metrics.jsonl", []
    end = written(path, [STEP, EVALUATION])
    if size < 1:
        size += end
        os.truncate(path, end - 1)
    before = path.read_bytes()
    log = MetricsLog(path, size=size, log=told.append)
    log.write(STEP)
    assert log.size == path.stat().st_size
    log.close()
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == before
    assert read_metrics(path) == [STEP]
    [line] = told
    assert f"{size:,} bytes had been written, and no line ends there now (the file has {len(before)} bytes)" in line
    assert line.endswith("it is set aside as metrics.1.jsonl, and a new log begins")


def test_a_file_with_a_broken_line_is_set_aside(tmp_path):
    path, told = tmp_path / "metrics.jsonl", []
    path.write_bytes(b'{"step":1}\n{"st\n{"step":3}\n')
    MetricsLog(path, size=path.stat().st_size, log=told.append).close()
    assert ":2: this line of metrics is broken" in told[0].replace("(2", "(:2")
    assert (tmp_path / "metrics.1.jsonl").exists()
    assert path.read_bytes() == b""


def test_a_file_that_is_lost_is_told_and_a_new_one_begins(tmp_path):
    path, told = tmp_path / "metrics.jsonl", []
    MetricsLog(path, size=77, log=told.append).close()
    assert told == [f"{path}: the log of what came before is lost, and a new log begins"]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_file_of_a_folder_that_was_replaced_meanwhile_is_not_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"

    def check():
        path.write_text("mine\n")  # what the open file now holds is the user's
        raise RunError("the folder was moved")

    with pytest.raises(RunError, match="was moved"):
        MetricsLog(path, check=check)
    assert path.read_text() == "mine\n"


@pytest.mark.parametrize("size", [0, 5])
def test_nothing_is_written_through_a_link_or_into_a_pipe(tmp_path, size):
    (tmp_path / "diary.txt").write_text("mine\n")
    (tmp_path / "link").symlink_to(tmp_path / "diary.txt")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    for name in ("link", "dangling", "pipe"):
        with pytest.raises(RunError, match="it is a link, or no regular file"):
            MetricsLog(tmp_path / name, size=size)
    assert (tmp_path / "diary.txt").read_text() == "mine\n"
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("size", [0, 5])
def test_a_place_that_cannot_be_written_is_an_error_of_the_run(tmp_path, size):
    with pytest.raises(RunError, match=r"none/metrics\.jsonl: the metrics cannot be written there: No such file"):
        MetricsLog(tmp_path / "none" / "metrics.jsonl", size=size)


def test_a_kill_at_any_byte_leaves_the_lines_before_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(path, [STEP, EVALUATION])
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        # A line that lacks nothing but its line break is whole.
        assert read_metrics(path) == [STEP, EVALUATION][: sum(end <= length for end in ends)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"step":1}\n{"st\n{"step":3}\n', r"metrics\.jsonl:2: this line of metrics is broken: .*Remove it"),
        (b'{"step":1}\n\n', r"metrics\.jsonl:2: this line of metrics is broken"),
        (b'{"step":"\xff"}\n', r"metrics\.jsonl:1: this line of metrics is broken: .*utf-8"),
        (b'{"step":1}\n[1]\n', r"metrics\.jsonl:2: expected a JSON object; came \[1\]"),
        (b'{"step":1}\n12', r"metrics\.jsonl:2: expected a JSON object; came 12"),
    ],
)
def test_a_broken_line_is_named(tmp_path, content, message):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with pytest.raises(RunError, match=message):
        read_metrics(path)


def test_a_file_that_is_not_there_is_an_error_of_the_run(tmp_path):
    with pytest.raises(RunError, match=r"metrics\.jsonl: the metrics cannot be read: No such file"):
        read_metrics(tmp_path / "metrics.jsonl")


[EventAccumulator] = late("tensorboard.backend.event_processing.event_accumulator", "EventAccumulator")

STEPS = [
    {"kind": "step", "step": step, "epoch": step / 250, "loss": 3.2 / step, "lr": 1e-3, "tokens": 8192 * step}
    for step in (100, 200, 300)
]
SCORED = {
    "kind": "evaluation",
    "step": 300,
    "loss": 2.9,
    "scores": {"loss": 2.9, "accuracy": 0.75, "signature": "v", "f1": {"red": 0.5, "step": 0.25}, "confusion": [[1]]},
    "samples": [{"input": "a", "output": "b"}],
    "best": True,
    "seconds": 1.5,
}


def curves_of(folder, lines, *, resumed: int = 0) -> None:
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
    curves_of(tmp_path, [*STEPS, SCORED])
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
    curves_of(tmp_path, [lost, {"kind": "end", "step": 1, "loss": 1.0}, {"step": 1, "loss": 1.0}])
    assert read(tmp_path) == {"train/tokens": {1: [5]}}


def test_a_resume_hides_what_came_after_the_checkpoint(tmp_path):
    curves_of(tmp_path, STEPS)
    # The files are read in the order of their names, which count seconds.
    (first,) = tmp_path.iterdir()
    first.rename(tmp_path / "events.out.tfevents.0000000001.first")
    curves_of(tmp_path, [STEPS[2] | {"loss": 0.5}], resumed=200)
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
