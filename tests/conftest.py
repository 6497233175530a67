"""What holds for every test, in this order: settings of the libraries, which files are read, which tests run where, and
the fixtures that all share.

Markers are in pyproject.toml. covering.py marks cases (`thorough`, `brief`, `shapes`), scheduling.py orders files and
gives them to workers, forked_workers.py is the workers, machines.py the rows of `make test-machines`. Nothing here may
import clearhead: jaxtyping's hook must be in place before that.
"""

import gc
import importlib
import os
from pathlib import Path
from typing import Any

import hypothesis
import matplotlib
import pytest
import torch
from _pytest.doctest import DoctestModule

from tests import forked_workers, machines
from tests.covering import mark_quick, mark_thorough
from tests.scheduling import FilesInTurn, longest_first

PLAIN = Path(__file__).parent / "plain"
LONG_DOCTESTS = ("clearhead.attention.grid",)
"""An example that checks a part on every kernel, for half a minute; docs/your-own-weighting.md does so too."""

OF_SHAPES = (
    *("attention/", "craft/", "decoding/", "model/", "tracing/", "training/tasks/", "training/test_losses.py"),
    *("training/test_train.py", "training/test_train_step.py"),
)
"""Tests of the modules whose signatures have shapes. Tests of others call the same functions; `make test-all` checks
shapes in every test.
"""
REPEATS_SHAPES = (
    *("craft/test_ready.py", "decoding/test_beam.py", "decoding/test_device_search.py", "decoding/test_graph_cache.py"),
    *("decoding/test_running.py", "decoding/test_beam_jobs.py", "decoding/test_session.py", "model/test_describe.py"),
    *("model/test_layer_norm_gpu.py", "model/test_sizes.py", "model/test_spec_json.py", "model/test_transformers.py"),
)
"""Files of these that take long and call no signature with shapes that the others do not call."""

IN_EVERY_WORKER = ("torch._dynamo",)
"""What every worker would import sooner or later, for a second and a half: an optimizer does."""

matplotlib.use("Agg")

# To seed a device that is not there, torch keeps for later from where it was asked to: a trace of the stack, three
# times in each test and each step of training.
for device in (torch.cuda, torch.xpu, torch.mtia):
    if not device.is_available():
        vars(device)["manual_seed_all"] = lambda seed: None

# What is compiled is compiled here: a pool of processes that each import torch takes longer than these few kernels.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Compiled graphs of every checkout lie in one folder of /tmp. One that was read from there aborted, another left half a
# batch out, and both were right when compiled anew. Kernels are still kept, by their source.
for cached in ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"):
    os.environ.setdefault(cached, "0")

# `too_slow` is a timing, and two busy cores would trip it. `make test-all` asks for the second one.
for name, examples in (("ci", 20), ("thorough", 60)):
    hypothesis.settings.register_profile(
        name,
        derandomize=True,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "ci")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests/plain out while shapes are checked: `pytest --jaxtyping-packages= tests/plain` runs it."""
    hooked = config.getoption("jaxtyping_packages", default=None)
    return True if hooked and collection_path.is_relative_to(PLAIN) else None


class Collecting:
    """Leaves files unread that have nothing for this session.

    The search for doctests would import and inspect every file, and so does the hook that checks shapes.
    """

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        if config.option.markexpr != "shapes" or collection_path.suffix != ".py":
            return None
        below = collection_path.relative_to(config.rootpath).as_posix().partition("/")[-1]
        return None if below.startswith(OF_SHAPES) and not below.startswith(REPEATS_SHAPES) else True

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path):
        found = yield
        if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
            return found
        return [one for one in found if not isinstance(one, DoctestModule)]


pytest_runtestloop = forked_workers.pytest_runtestloop
pytest_sessionstart = machines.pytest_sessionstart


def pytest_addoption(parser: pytest.Parser) -> None:
    forked_workers.pytest_addoption(parser)
    machines.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    # Not as a function here: what a conftest.py has to say of files holds for its own folder alone.
    config.pluginmanager.register(Collecting())
    forked_workers.pytest_configure(config)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesInTurn | None:
    return FilesInTurn(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session):
    """Collect no garbage while tests are collected, nor ever what is there by then: it stays, and takes a second."""
    gc.disable()
    try:
        found = yield
        if session.config.getoption("forks"):
            for name in IN_EVERY_WORKER:
                importlib.import_module(name)
        return found
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves out what is marked here
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_thorough(items)
    for item in items:
        if item.name in LONG_DOCTESTS:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.thorough)
        if item.path.is_relative_to(PLAIN):
            item.add_marker(pytest.mark.plain)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    if config.getoption("jaxtyping_packages", default=None):
        items[:] = [item for item in items if not item.get_closest_marker("plain")]
    mark_quick(items, OF_SHAPES, REPEATS_SHAPES)
    longest_first(items)


@pytest.fixture(autouse=True)
def seed():
    """Every test draws the same random numbers, alone or among others."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def forgotten_parts():
    """A part of a test's own is gone after it: whichever test comes next would find it in the registry."""
    from clearhead.registry import CLASSES

    before = set(CLASSES)
    yield
    left = sorted(name for name in set(CLASSES) - before if ":" in name)
    assert not left, f"this test leaves {left} in the registry: register within `registry_restored`"


@pytest.fixture(autouse=True)
def threads(request):
    """Every test begins with one thread, or as many as its row of `make test-machines` has, whatever the last one left:
    small tensors lose by a second one, and on a busy machine the two wait for each other.
    """
    row = machines.row_of(request.config)
    torch.set_num_threads(row.threads if row else 1)


@pytest.fixture(scope="session", autouse=True)
def quick_disk_and_pictures():
    """Wait for no disk, since what is flushed matters where the power fails: processes that are killed flush for real.
    And write a sketch for the curves of runs and comparisons, whose drawing takes longer than to train for a few steps.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        for name in ("clearhead.training.loop.draw_curves", "clearhead.experiments.comparing.draw_comparison"):
            patch.setattr(name, lambda data, path, **options: path.write_text("<svg/>", encoding="utf-8"))
        yield


def small_run(kind):
    """A fixture: one of the small runs of tests/training/small_runs.py, trained once in a session."""

    @pytest.fixture(scope="module")
    def run(tmp_path_factory):
        from tests.training import small_runs

        return small_runs.trained(getattr(small_runs, kind), tmp_path_factory)

    return run


translator = small_run("translating")
documents = small_run("documents")
stretch = small_run("stretch")
filler = small_run("filling")
classifier = small_run("classifying")
