"""Bytes that each rank holds are those of torch's own fully_shard, to the byte, for counts that do not divide."""

import pytest
import torch
import torch.distributed as dist

import clearhead as ch
from clearhead.model import presets
from clearhead.model.blocks import AttentionSpec, Block
from clearhead.model.presets import Size
from estimator.sharding import Shape, held_bytes, units_of
from tests.peers import late

(fully_shard,) = late("torch.distributed.fsdp", "fully_shard")
(FakeStore,) = late("torch.testing._internal.distributed.fake_pg", "FakeStore")
(init_device_mesh,) = late("torch.distributed.device_mesh", "init_device_mesh")
SPEC = presets.gpt2(Size(2, 12, 2, 2, 20), vocabulary=37, length=9, dropout=0.0)


@pytest.fixture
def as_rank():
    """Makes this process one rank of many, whose collectives do nothing."""

    def begin(rank, world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        return init_device_mesh("cpu", (world,))

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def storage(tensors):
    """The bytes of the storages behind the local parts of tensors, each once."""
    found = {}
    for one in tensors:
        own = one.to_local() if hasattr(one, "to_local") else one
        found[own.untyped_storage().data_ptr() or id(own)] = own.untyped_storage().nbytes()
    return sum(found.values())


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 3), (2, 3), (0, 5), (4, 5), (6, 16), (15, 16), (39, 40)])
@pytest.mark.slow
def test_a_rank_holds_what_fully_shard_gives_it(as_rank, rank, world):
    mesh, model = as_rank(rank, world), SPEC.build()
    units = units_of(model)
    for block in [one for one in model.modules() if isinstance(one, Block)]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    model(torch.zeros(2, 5, dtype=torch.int64)).sum().backward()
    gradients = [one.grad for one in model.parameters()]
    held = held_bytes(units, gpus=world, sharded=True, averaged=True, rank=rank)
    assert held.parameters == held.average == storage(model.parameters())
    # All gradients of a unit lie in one buffer, which the reduce-scatter filled.
    assert held.gradients == storage(gradients)
    optimizer.step()
    states = [one for state in optimizer.state.values() for one in state.values()]
    assert held.optimizer == sum(getattr(one, "_local_tensor", one).numel() * one.element_size() for one in states)


def test_replicas_hold_everything_and_frozen_parameters_have_no_gradients():
    model = SPEC.build()
    count = sum(one.numel() for one in model.parameters())
    table = model.embedding.table
    table.requires_grad_(False)
    held = held_bytes(units_of(model), gpus=7, sharded=False, averaged=False)
    rest = count - table.numel()
    trained = sum(one.requires_grad for one in model.parameters())
    assert held == (4 * count, 4 * rest, 8 * rest + 4 * trained, 0)


def test_the_shards_of_all_ranks_are_the_whole_and_padding_comes_last():
    shape = Shape((10, 3), True)
    assert [shape.own(4, rank) for rank in range(4)] == [9, 9, 9, 3]
    assert [shape.own(16, rank) for rank in (0, 9, 10, 15)] == [3, 3, 0, 0]
    assert (shape.padded(4), shape.padded(16)) == (9, 3)


def test_units_are_blocks_and_a_root_and_shared_parts_belong_to_the_root():
    assert [unit.name for unit in units_of(presets.tiny(50))] == [
        "root",
        *(f"{side}.stack.blocks.{n}" for side in ("encoder", "decoder") for n in range(4)),
    ]
    assert sum(unit.size for unit in units_of(presets.tiny(50))) == sum(
        one.numel() for one in presets.tiny(50).build().parameters()
    )
    attention = AttentionSpec(heads=4, position=ch.positions.T5Bias())
    shared = presets.llama("tiny", vocabulary=50, attention=attention)
    names = [unit.name for unit in units_of(shared)]
    assert names == (["root"] if attention.position.shared else ["root", "stack.blocks.0", "stack.blocks.1"])
