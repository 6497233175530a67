"""Work that is recorded: what was never seen runs as it is, the next call is recorded, and then it is replayed."""

from clearhead.decoding import recorded
from clearhead.decoding.recorded import Replay


def test_a_kind_runs_once_before_it_is_recorded(monkeypatch):
    done, seen = [], set()

    def record(work):
        done.append("recorded")
        return lambda: done.append("replayed")

    monkeypatch.setattr(recorded, "record", record)
    replay = Replay(lambda: done.append("ran"), seen, ("kind", 3))
    for _ in range(3):
        replay()
    assert done == ["ran", "recorded", "replayed", "replayed"]
    Replay(lambda: done.append("ran"), seen, ("kind", 3))()
    assert done[4:] == ["recorded", "replayed"]
    Replay(lambda: done.append("ran"), seen, ("kind", 4))()
    assert done[6:] == ["ran"]
