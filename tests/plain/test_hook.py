"""The tests of this folder run as a user's program does: nothing checks shapes behind their backs."""

import sys


def test_shapes_are_not_checked_here():
    finders = [type(finder).__module__ for finder in sys.meta_path]
    assert not [name for name in finders if name.startswith("jaxtyping")]
