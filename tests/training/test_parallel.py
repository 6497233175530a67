"""Shares of rows, groups of weights, and what is refused. test_together.py compares several processes with one."""

import math
import types
from dataclasses import replace

import pytest
import torch

from clearhead import system
from clearhead.attention import positions
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.blocks import Stack
from clearhead.training import parallel
from clearhead.training.distributed import Processes
from clearhead.training.losses import NOTHING
from clearhead.training.parallel import (
    ROOM,
    Sharded,
    SingleProcess,
    build_model,
    check_room,
    check_together,
    choose_parallel,
    has_unused,
    is_large,
    own_blocks,
    share_rows,
)
from clearhead.training.recipe import Checkpointing, FineTuning, Machine, ParallelLayout
from clearhead.training.schedules import Unaveraged
from tests.training import small_runs
from tests.training.tiny import recipe_for

TOGETHER = Processes(count=2, local_count=2, control=types.SimpleNamespace())


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_row_is_in_one_share(rows, count):
    batch = {"wanted": torch.arange(rows)[:, None], "tokens": torch.arange(rows)[:, None] + 100}
    shares = [share_rows(batch, rank, count) for rank in range(count)]
    assert all(len(one["wanted"]) == len(one["tokens"]) > 0 for one in shares)
    asked = torch.cat([one["wanted"] for one in shares])
    assert asked[asked != NOTHING].tolist() == list(range(rows))


def test_tied_and_shared_weights_stay_in_the_root_group():
    """What is in two places must be in one group: torch refuses it, or unties it, otherwise."""
    tied = presets.classic(64, size=small_runs.SIZE).build()
    assert len(own_blocks(tied)) == sum(len(one.blocks) for one in tied.modules() if isinstance(one, Stack))
    groups = {id(one) for block in own_blocks(tied) for one in block.parameters()}
    assert id(tied.encoder.embedding.table) not in groups
    spec = tied.spec.encoder
    for shared, groups in ((False, 2), (True, 0)):
        position = positions.T5Bias(shared=shared)
        block = replace(spec.blocks[0], attention=replace(spec.blocks[0].attention, position=position))
        assert len(own_blocks(Stack([block, block], spec.d_model))) == groups


def test_looking_for_a_weight_without_gradient_leaves_buffers_alone():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.map = torch.nn.Linear(1, 1)
            self.register_buffer("passes", torch.zeros((), dtype=torch.long))

        def forward(self, batch):
            self.passes += 1
            return types.SimpleNamespace(objective=self.map(batch["x"]).sum())

    module = Counting()
    assert not has_unused(module, {"x": torch.ones(2, 1)})
    assert module.passes == 0


def test_a_weight_without_gradient_is_found():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

        def forward(self, batch):
            used = self.used(batch["x"]).sum()
            return types.SimpleNamespace(objective=used + (self.unused(batch["x"]).sum() if self.whole else 0))

    module = Half()
    for module.whole in (False, True):
        assert has_unused(module, {"x": torch.ones(2, 1)}) is not module.whole
        assert all(one.grad is None for one in module.parameters())


def test_one_process_trains_alone_and_unfit_choices_are_refused(tmp_path):
    recipe = recipe_for(small_runs.classifying, tmp_path)
    model, device = torch.nn.Linear(2, 2), torch.device("cpu")
    assert isinstance(choose_parallel(recipe, Processes(), model, device), SingleProcess)
    sharded = replace(recipe, machine=Machine(device="cpu", parallel="fsdp"))
    with pytest.raises(OptionError, match="film: weights that are sharded"):
        choose_parallel(replace(sharded, checkpointing=Checkpointing(film=True)), TOGETHER, model, device)
    compiled = replace(sharded, machine=replace(sharded.machine, compile=True))
    with pytest.raises(OptionError, match="compile: is not offered with --parallel fsdp"):
        choose_parallel(compiled, TOGETHER, model, device)
    with pytest.raises(OptionError, match="compile: is not offered with --parallel fsdp"):
        check_together(compiled, 2)
    with pytest.raises(OptionError, match="muon needs whole matrices, and fsdp shards them: take --parallel ddp"):
        check_together(replace(sharded, optimizer=replace(sharded.optimizer, method="muon")), 2)
    check_together(replace(compiled, machine=replace(compiled.machine, parallel="auto")), 2)
    model.alpha = torch.nn.Parameter(torch.tensor(0.5))
    with pytest.raises(OptionError, match=r"alpha is a single number.*shape \(1,\).*--parallel ddp"):
        choose_parallel(sharded, TOGETHER, model, device)


def test_sequences_that_cannot_be_split_are_refused_by_name(tmp_path):
    def refused(make, match, *, processes=TOGETHER, **machine):
        machine = Machine(**{"device": "cpu", "parallel": "ddp,context=2", **machine})
        recipe = replace(recipe_for(make, tmp_path / make.__name__), machine=machine)
        with pytest.raises(OptionError, match=match):
            choose_parallel(recipe, processes, recipe.model.build(), torch.device("cpu"))
        with pytest.raises(OptionError, match=match):
            check_together(recipe, processes.count)

    refused(small_runs.translating, "splits the sequences of an encoder or a decoder, and this model has both")
    refused(small_runs.classifying, "this one has an answer for a whole sequence, which no process holds")
    refused(small_runs.documents, "compile: is not offered with a context of several processes", compile=True)
    three = replace(TOGETHER, count=3)
    refused(small_runs.documents, "3 processes cannot be grouped by context=2; start a multiple of 2", processes=three)


def test_processes_of_one_layout():
    """Of twelve, six have the same rows; of these each two neighbours have the same places."""
    cpu, batch = torch.device("cpu"), {"wanted": torch.arange(4)[:, None]}
    ways = [Sharded(Processes(rank=rank, count=12), cpu, ParallelLayout("fsdp", 3, 2)) for rank in range(12)]
    assert [one.part for one in ways] == [0, 1] * 6
    assert {one.scale for one in ways} == {6.0}
    rows = [one.share(batch)["wanted"].flatten().tolist() for one in ways]
    assert rows == [[0, 1]] * 6 + [[2, 3]] * 6


NO_LAYOUTS = ("ddp,4", "ddp,context=", "ddp,context=x", "tensor", "fsdp,context=0", "context=2,context=2", "", "fsdp,")


@pytest.mark.parametrize("text", [*NO_LAYOUTS, "ddp,tensor=2"])
def test_a_way_to_train_together_that_is_none_is_refused(text):
    with pytest.raises(OptionError, match="parallel: "):
        Machine(parallel=text)


def test_a_model_that_cannot_be_trained_here_is_refused_before_anything_is_read(tmp_path):
    recipe = replace(recipe_for(small_runs.classifying, tmp_path), machine=Machine(device="cpu"))
    check_room(recipe, Processes())
    huge = replace(recipe, parameters=10**12)
    named = (
        r"1,000,000,000,000 parameters takes more memory to train than cpu has: 20 bytes each.*there are [\d,.]+ GiB; "
        r".* of [\d,]+M parameters at most"
    )
    with pytest.raises(OptionError, match=named):
        check_room(huge, Processes())
    check_room(huge, TOGETHER)


def test_a_model_of_any_option_is_refused_before_its_memory_is_taken(tmp_path, monkeypatch):
    recipe = replace(recipe_for(small_runs.classifying, tmp_path), machine=Machine(device="cpu"))
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, averaging=Unaveraged()))
    count = sum(one.numel() for one in recipe.model.build().parameters())
    least = math.ceil(16 * count / ROOM)
    tuning = FineTuning(source="", run=None, step=1, sha256="", freeze=("embedding",))
    for memory, fits, fits_frozen in ((least, True, True), (least - 16, False, True), (3, False, False)):
        monkeypatch.setattr(parallel, "memory_bytes", lambda device, processes, there=memory: float(there))
        for one, room in ((recipe, fits), (replace(recipe, fine_tuning=tuning), fits_frozen)):
            for act in (lambda one=one: check_room(one, Processes()), lambda one=one: built(one)):
                if room:
                    act()
                else:
                    with pytest.raises(OptionError, match="takes more memory to train than cpu has"):
                        act()


def built(recipe):
    return build_model(recipe, recipe.model, Processes())


def test_a_container_may_have_less_memory_than_its_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "CONTAINER", tmp_path / "max")
    whole = parallel.memory_bytes(torch.device("cpu"), Processes())
    (tmp_path / "max").write_text("max\n")
    assert parallel.memory_bytes(torch.device("cpu"), Processes()) == whole
    (tmp_path / "max").write_text("1048576\n")
    assert parallel.memory_bytes(torch.device("cpu"), Processes()) == 2**20


def test_a_model_is_large_by_the_memory_that_there_is(tmp_path):
    recipe = recipe_for(small_runs.classifying, tmp_path)
    assert not is_large(recipe, TOGETHER, torch.nn.Linear(2, 2), torch.device("cpu"))
    huge = torch.nn.Linear(1 << 20, 1 << 20, device="meta")
    assert is_large(recipe, TOGETHER, huge, torch.device("cpu"))
