"""The job loop: what waits is computed together, a failure is told to those it concerns, and the next job is done."""

import asyncio

import pytest

from clearhead.decoding import Rules
from clearhead.decoding.scheduler import Finished, Job
from clearhead.errors import OptionError
from clearhead.serve.api.worker import Worker
from clearhead.serve.app import Front
from clearhead.serve.errors import ApiError
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Logs
from tests.serve.api_serving import Slow, run_apart

JOB = Job(inputs=(1,), rules=Rules(max_new=3))


def worker(make=None, **limits):
    return Worker("it", make, Front(limits=Limits(**limits), logs=Logs("json", write=lambda line: None)))


def run(made, work):
    async def whole():
        await made.start()
        try:
            return await work()
        finally:
            made.close()

    return run_apart(whole())


def test_texts_that_wait_are_computed_together_each_kind_by_itself():
    made, seen = worker(), []

    def double(items):
        seen.append(list(items))
        return [2 * item for item in items]

    async def work():
        return await asyncio.gather(*(made.compute("even" if i % 2 == 0 else i, double, [i]) for i in range(6)))

    assert run(made, work) == [[2 * i] for i in range(6)]
    assert sorted(item for items in seen for item in items) == list(range(6))
    assert all(len({item % 2 for item in items}) == 1 for items in seen)


def test_one_wrong_text_fails_alone():
    def inverse(items):
        if 0 in items:
            raise OptionError("0 has none")
        return [1 / item for item in items]

    made = worker()

    async def work():
        return await asyncio.gather(*(made.compute("it", inverse, [i]) for i in (1, 0, 2)), return_exceptions=True)

    first, wrong, last = run(made, work)
    assert (first, last) == ([1.0], [0.5])
    assert isinstance(wrong, ApiError)
    assert (wrong.status, str(wrong)) == (400, "0 has none")


class Failing(Slow):
    """Breaks at its second step."""

    def step(self):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 2:
            raise self.error
        return super().step()


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("odd"), 500), (MemoryError(), 503)])
def test_a_scheduler_that_breaks_is_replaced(error, status):
    made_so_far = []

    def make():
        made_so_far.append(Slow(None, 0) if made_so_far else Failing(None, 0))
        made_so_far[-1].error = error
        return made_so_far[-1]

    made = worker(make)

    async def work():
        first = made.decode(JOB)
        with pytest.raises(ApiError) as found:
            await first.next_event()
        return found.value.status, await made.decode(JOB).next_event()

    found, event = run(made, work)
    assert found == status
    assert isinstance(event, Finished)
    assert event.hypotheses[0].tokens == (5, 5, 5)
    assert len(made_so_far) == 2


def test_a_job_that_is_dropped_before_it_began_never_does():
    scheduler = Slow(None, 0)
    made = worker(lambda: scheduler)

    async def work():
        made.cancel(made.decode(JOB))
        other = made.decode(JOB)
        event = await other.next_event()
        return event.ticket

    assert run(made, work) == 2
    assert scheduler.jobs == {}
