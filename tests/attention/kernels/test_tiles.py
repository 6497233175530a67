"""The operators that a compiled graph holds: torch's own check of what they say of themselves."""

import pytest
import torch

from clearhead.attention.inputs import who_sees
from clearhead.attention.kernels.fused import in_dense_rows
from clearhead.attention.kernels.tiles import list_counted_tiles, list_range_tiles

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
