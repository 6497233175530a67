"""What the tests of tests/plain share."""

import pytest


@pytest.fixture
def dynamo_of_torch_2_11(monkeypatch):
    """Dynamo as torch 2.11 has it: it cannot wrap a slice that it finds in a function's defaults."""
    from torch._dynamo.variables import builder  # takes seconds

    create = builder.SourcelessBuilder.create

    def refuse(tx, value):
        assert not isinstance(value, slice), "torch 2.11: Unexpected type in sourceless builder builtins.slice"
        return create(tx, value)

    monkeypatch.setattr(builder.SourcelessBuilder, "create", staticmethod(refuse))
