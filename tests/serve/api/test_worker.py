"""The worker: room is held for a request while it is answered."""

import pytest

from clearhead.decoding import Rules
from clearhead.decoding.scheduler import Job
from clearhead.serve.api.worker import Worker
from clearhead.serve.app import Front
from clearhead.serve.errors import ApiError
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Logs

JOB = Job(inputs=(1,), rules=Rules(max_new=3))


def worker(make=None, **limits):
    return Worker("it", make, Front(limits=Limits(**limits), logs=Logs("json", write=lambda line: None)))


def test_room_is_held_while_it_is_used_and_given_back():
    made = worker(queue=3, memory=100)
    with made.taking(2, 60):
        with pytest.raises(ApiError, match="takes 3; try again later") as found, made.taking(2):
            pass
        assert (found.value.status, found.value.retry_after) == (429, 1)
        with pytest.raises(ApiError, match="no memory") as found, made.taking(1, 50):
            pass
        assert found.value.status == 503
    for count, memory in ((4, 0), (1, 101)):
        with pytest.raises(ApiError) as found, made.taking(count, memory):
            pass
        assert found.value.status == 413
    assert (made.pending, made.memory) == (0, 0)
