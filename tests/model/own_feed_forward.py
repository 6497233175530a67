"""Feed-forwards of a user's own, around ours: one says nothing, one says what it can do, one changes what it said
(tests of recorded steps and of training in bfloat16).
"""

from torch import nn


class Own(nn.Module):
    """A feed-forward of the user's own, around ours."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Said(Own):
    recordable = supports_bfloat16 = True


class ChangedAfter(Said):
    def forward(self, x):
        return 2 * self.inner(x)
