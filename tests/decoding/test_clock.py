"""The clock of slots: each writes in columns of its own, and the mask of sources follows who has which slot."""

import torch

from clearhead.decoding.clock import Clock, SessionSize, SourceMask


def test_each_row_and_head_writes_in_a_place_of_its_own():
    clock = Clock(SessionSize(4, 6, 6), torch.device("cpu"), torch.float32)
    clock.rows, clock.at = 3, torch.tensor([5, 0, 2, 1])
    memory = torch.zeros(4, 2, 6)
    memory.view(-1)[clock.places(2, 6)] = 1
    assert memory.nonzero().tolist() == [[row, head, at] for row, at in enumerate((5, 0, 2)) for head in range(2)]


def test_a_slot_has_the_source_of_who_came_last():
    mask = SourceMask(4, torch.device("cpu"), torch.float32)
    mask.grow(4)
    assert mask.real[:, 0, 0].tolist() == [[True, False, False, False]] * 4
    lengths = torch.tensor([3, 2])
    mask.join(lengths, torch.tensor([0, 1, 1]), torch.tensor([3, 0, 2]))
    mask.join(lengths[1:], torch.tensor([0]), torch.tensor([3]))
    mask.grow(8)
    mask.copy(torch.tensor([3]), torch.tensor([1]))
    assert mask.real[:, 0, 0].sum(-1).tolist() == [2, 2, 2, 2]
    assert mask.real.shape[3] == 8
    assert torch.equal(mask.added, mask.real.float().log())


def test_plain_attention_of_a_step_is_float32_or_better_on_a_cpu():
    def dtype_of(model, device):
        return Clock(SessionSize(2, 8, 8), torch.device(device), model).dtype

    assert dtype_of(torch.bfloat16, "cpu") is torch.float32
    assert dtype_of(torch.float64, "cpu") is torch.float64
    assert dtype_of(torch.bfloat16, "meta") is torch.bfloat16
