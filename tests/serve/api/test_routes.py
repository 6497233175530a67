"""The API's table of routes: what cannot be served is told before anything is."""

import pytest

from clearhead.errors import OptionError
from clearhead.serve.api.routes import VERBS, Api
from clearhead.serve.bodies import BODIES


def test_what_cannot_be_served_is_told_at_once(api_runs):
    with pytest.raises(OptionError, match="there is nothing to serve"):
        Api([])
    with pytest.raises(OptionError, match="replicas must be 1 or more; came 0"):
        Api([api_runs["translator"]], replicas=0)
    with pytest.raises(OptionError, match=r"replicas: 2 processes .* here models are on cpu. Leave it at 1"):
        Api([api_runs["translator"]], replicas=2)  # threads of this process decode


def test_every_verb_has_the_type_of_its_body():
    assert set(VERBS) == {path for path in BODIES if path.startswith("/v1/")}
