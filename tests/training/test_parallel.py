"""Several processes take the steps of one: DDP and FSDP2, for a translator, a decoder and a classifier."""

import types
from dataclasses import replace

import pytest
import torch

from clearhead.attention import positions
from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.model.blocks import Stack
from clearhead.training.distributed import Processes
from clearhead.training.folder import RunFolder
from clearhead.training.losses import NOTHING
from clearhead.training.parallel import Alone, choose_parallel, has_unused, is_large, own_blocks, share_rows
from clearhead.training.recipe import Checkpointing, Machine
from tests.training import small_runs
from tests.training.tiny import recipe_for
from tests.training.together import ATTENTION, KINDS, OPTIONS, launch, losses, tensors, train_all, worst

TOGETHER = Processes(count=2, local_count=2, control=types.SimpleNamespace())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The runs of every task that one process trains, in float64."""
    home = tmp_path_factory.mktemp("alone")
    train_all(home, ("ddp",), KINDS, 3, torch.float64)
    return home / "ddp"


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(alone, tmp_path):
    """Batches of uneven shares, micro-batches, an average, clipping, evaluations; in one launch."""
    launch(2, tmp_path, "--ways", "ddp,fsdp", "--steps", 3)
    for way in ("ddp", "fsdp"):
        for kind in KINDS:
            run = tmp_path / way / kind
            assert worst(losses(run), losses(alone / kind)) < 1e-12
            assert worst(tensors(run), tensors(alone / kind)) < 1e-12
            names = {one.name for one in RunFolder(run).checkpoints.newest().folder.iterdir()}
            assert names == {"model.safetensors", "training.safetensors", "state.json"}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2, 4])
def test_fifty_losses_are_those_of_one_process(count, tmp_path):
    train_all(tmp_path / "one", ("ddp",), KINDS, 50, torch.float64)
    launch(count, tmp_path, "--ways", "ddp,fsdp", "--steps", 50)
    for way in ("ddp", "fsdp"):
        for kind in KINDS:
            assert worst(losses(tmp_path / way / kind), losses(tmp_path / "one/ddp" / kind)) < 1e-9


@pytest.mark.slow
@pytest.mark.thorough
def test_every_kind_of_attention_and_option(tmp_path):
    """In bfloat16 the order of sums shows: it is told apart."""
    kinds = [f"documents:{name}" for name in (*ATTENTION, *OPTIONS)]
    train_all(tmp_path / "one", ("ddp",), kinds, 4, torch.float64)
    launch(2, tmp_path, "--ways", "ddp,fsdp", "--steps", 4, "--kinds", ",".join(kinds))
    for way in ("ddp", "fsdp"):
        for kind in kinds:
            most = 0.05 if kind.endswith("bfloat16") else 1e-9
            assert worst(losses(tmp_path / way / kind), losses(tmp_path / "one/ddp" / kind)) < most, (way, kind)


@pytest.mark.slow
@pytest.mark.thorough
def test_float32_losses_are_near_those_of_one_process(tmp_path):
    train_all(tmp_path / "one", ("ddp",), KINDS, 50, torch.float32)
    launch(2, tmp_path, "--ways", "ddp,fsdp", "--steps", 50, "--dtype", "float32")
    for way in ("ddp", "fsdp"):
        for kind in KINDS:
            assert worst(losses(tmp_path / way / kind), losses(tmp_path / "one/ddp" / kind)) < 1e-4


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """Saved by 2; 1 and 4 go on with the same batches and losses."""
    import shutil

    train_all(tmp_path / "one", ("ddp",), KINDS, 10, torch.float64)
    launch(2, tmp_path, "--ways", "ddp,fsdp", "--steps", 5)
    for count in (1, 4):
        home = tmp_path / f"on-{count}"
        for way in ("ddp", "fsdp"):
            shutil.copytree(tmp_path / way, home / way)
        launch(count, home, "--ways", "ddp,fsdp", "--steps", 10)
        for way in ("ddp", "fsdp"):
            for kind in KINDS:
                # The schedule is that of the budget at the time, so only the batches of the first half are compared
                # with a run that knew of ten steps from the start.
                told = [line["tokens"] for line in steps_of(home / way / kind)]
                assert told == [line["tokens"] for line in steps_of(tmp_path / "one/ddp" / kind)]
    for way in ("ddp", "fsdp"):
        for kind in KINDS:
            ours, theirs = (tmp_path / f"on-{count}" / way / kind for count in (1, 4))
            assert worst(losses(ours), losses(theirs)) < 1e-9


def steps_of(run):
    from clearhead.training.metrics import read_metrics

    return [line for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "step"]


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
    assert isinstance(choose_parallel(recipe, Processes(), model, device), Alone)
    sharded = replace(recipe, machine=Machine(device="cpu", parallel="fsdp"))
    with pytest.raises(OptionError, match="film: weights that are sharded"):
        choose_parallel(replace(sharded, checkpointing=Checkpointing(film=True)), TOGETHER, model, device)
    compiled = replace(sharded, machine=replace(sharded.machine, compile=True))
    with pytest.raises(OptionError, match="compile: is not offered with --parallel fsdp"):
        choose_parallel(compiled, TOGETHER, model, device)


def test_a_model_is_large_by_the_memory_that_there_is(tmp_path):
    recipe = recipe_for(small_runs.classifying, tmp_path)
    assert not is_large(recipe, TOGETHER, torch.nn.Linear(2, 2), torch.device("cpu"))
    huge = torch.nn.Linear(1 << 20, 1 << 20, device="meta")
    assert is_large(recipe, TOGETHER, huge, torch.device("cpu"))
