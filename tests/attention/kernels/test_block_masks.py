"""Tiles of a mask: torch's own block mask, found a band of rows at a time, and remembered by the mask."""

import pytest
import torch

from clearhead.attention import mask_rules, masks
from clearhead.attention.inputs import LONG, who_sees
from clearhead.attention.kernels import block_masks, choose
from clearhead.attention.kernels.block_masks import find_tiles, list_counted_tiles, list_range_tiles
from clearhead.attention.kernels.flex import mask_mod
from clearhead.attention.kernels.fused import in_dense_rows
from clearhead.attention.mask_numbers import Extent
from clearhead.attention.positions import ALiBi, NoPosition
from clearhead.attention.request import AttentionOptions
from clearhead.attention.weighting import Softmax
from tests.peers import late

[create_block_mask] = late("torch.nn.attention.flex_attention", "create_block_mask")

BATCH, HEADS = 2, 3
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget():
    block_masks.cache.values.clear()


def call_of(mask, n_query=300, n_key=300, positions=(None, None), position=NoPosition()):
    query, key = torch.randn(BATCH, HEADS, n_query, 16), torch.randn(BATCH, HEADS, n_key, 16)
    return AttentionOptions(None, Softmax(), position, mask).inputs((query, key, key), positions)


def places(blocks):
    """Return the query tiles listed for each key tile, partial and full, and -1 behind the last."""
    sides = ((blocks.q_num_blocks, blocks.q_indices), (blocks.full_q_num_blocks, blocks.full_q_indices))
    return torch.stack(
        [side.masked_fill(torch.arange(side.shape[-1]) >= counts.unsqueeze(-1), -1) for counts, side in sides]
    )


def tiles_of(call):
    return block_masks.tiles_of(call, mask_mod)


@pytest.mark.parametrize(("n_query", "n_key"), [(300, 300), (128, 256), (5, 290), (270, 130)])
@pytest.mark.parametrize("name", list(masks.TABLE))
@pytest.mark.pairs(1)
def test_tiles_are_those_of_torch(name, n_query, n_key, monkeypatch):
    monkeypatch.setattr(block_masks, "BAND_CELLS", 1)  # a band is one row of tiles
    call = call_of(masks.TABLE[name](Extent(BATCH, HEADS, n_query, n_key, CPU)), n_query, n_key)
    found = find_tiles(call, mask_mod)
    batch, heads = found.block_mask.kv_num_blocks.shape[:2]
    rule = mask_mod(call)

    def may_attend(b, h, q, k):  # torch counts the arguments, which the shape hook hides
        return rule(b, h, q, k)

    torchs = create_block_mask(may_attend, batch, heads, n_query, n_key, "cpu")
    assert torch.equal(found.block_mask.to_dense(), torchs.to_dense())
    assert torch.equal(found.block_mask.kv_num_blocks, torchs.kv_num_blocks)
    assert torch.equal(found.block_mask.full_kv_num_blocks, torchs.full_kv_num_blocks)
    assert torch.equal(found.block_mask.q_num_blocks, torchs.q_num_blocks)
    assert torch.equal(found.block_mask.full_q_num_blocks, torchs.full_q_num_blocks)
    assert torch.equal(places(found.block_mask), places(torchs))
    # Flex reads them so, whatever their strides: the process ends in a CUDA error where they are others.
    assert all(
        side.is_contiguous() for side in found.block_mask.as_tuple(flatten=True) if isinstance(side, torch.Tensor)
    )
    allowed = call.mask.allowed(call.cells()).expand(BATCH, HEADS, n_query, n_key)
    if found.sight is None:
        assert allowed.any(-1).all()
        assert allowed.any(-2).all()
    else:
        assert torch.equal(found.sight.keys.expand(BATCH, HEADS, -1), allowed.any(-2))
        if found.sight.rows is None:  # no tile is visited of a row of the batch whose queries see nothing
            assert torch.equal(allowed.any(-1), allowed.any((-1, -2)).unsqueeze(-1).expand(-1, -1, n_query))
        else:
            assert torch.equal(found.sight.rows.expand(BATCH, HEADS, -1), allowed.any(-1))


def test_a_mask_is_evaluated_once_for_all_the_layers_that_share_it():
    ids = torch.arange(300) // 100
    document = masks.document(ids)
    first = tiles_of(call_of(masks.causal() & document))
    assert tiles_of(call_of(masks.causal() & document)) is first
    assert tiles_of(call_of(masks.causal() & document, n_query=100)) is not first
    assert tiles_of(call_of(masks.causal() & masks.document(ids))) is not first


def test_a_tensor_changed_in_place_is_noticed():
    lengths = torch.tensor([300, 140])
    call = call_of(masks.padding(lengths))
    before = tiles_of(call)
    term = next(one for one in call.mask.terms if isinstance(one, mask_rules.Padding))
    assert before.sight is not None
    next(value for value in vars(term).values() if isinstance(value, torch.Tensor)).fill_(300)
    assert tiles_of(call).sight is None


def test_what_a_users_function_says_is_asked_anew_each_time():
    limit = [10]
    mask = masks.function(lambda query, key: key < limit[0])
    before = tiles_of(call_of(mask)).block_mask.to_dense()
    limit[0] = 300
    after = tiles_of(call_of(mask)).block_mask.to_dense()
    assert after.sum() > before.sum()


def test_the_cache_stays_small():
    for _ in range(2 * block_masks.CACHED):
        tiles_of(call_of(masks.document(torch.zeros(300, dtype=torch.long))))
    assert len(block_masks.cache.values) == block_masks.CACHED


@pytest.mark.parametrize(
    ("mask", "position", "n", "expected"),
    [
        (masks.causal(), NoPosition(), 4096, "fused"),
        (masks.window(5), NoPosition(), 4096, "flex"),
        (masks.window(5), NoPosition(), 256, "fused"),
        (masks.causal(), ALiBi(), 4096, "flex"),
        (masks.everything(), NoPosition(), 4096, "fused"),
    ],
)
def test_on_a_gpu_a_long_mask_is_compiled_and_not_built(mask, position, n, expected):
    facts = call_of(mask, n, n, position=position).facts()
    assert choose(facts._replace(device="cuda", long=n * n >= LONG)) == expected
    assert choose(facts) == "fused"


FIRST = torch.arange(300).expand(2, 300)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (who_sees, (torch.rand(2, 1, 5, 7) > 0.5,)),
        (in_dense_rows, (torch.randn(2, 3, 4, 5).mT.requires_grad_(),)),
        (list_range_tiles, (FIRST - 40, FIRST + 1, 300)),
        (list_counted_tiles, (torch.randint(3, (2, 1, 3, 4)) * 8192,)),
    ],
)
def test_operators_are_what_they_say_to_a_compiler(operator, arguments):
    """Shapes, strides and dtypes of what they return; that they change nothing; and gradients."""
    torch.library.opcheck(
        operator, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
    )


def test_a_gradient_passes_a_mask_in_dense_rows():
    mask = torch.randn(2, 1, 5, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: in_dense_rows(x.mT) * 2, [mask])
