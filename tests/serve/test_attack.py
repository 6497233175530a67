"""The short form of the attack on the server; `tests/attack/requests.py` has the long one."""

import pytest

from tests.attack.requests import attack_server


@pytest.mark.slow
def test_random_requests_beside_silent_connections_get_clear_answers():
    found = attack_server(1000, seed=1, silent=100)
    assert found["requests"] >= 1000
    assert (found["server_errors"], found["unclear"], found["examples"]) == (0, 0, [])
    assert (found["unanswered"], found["stderr"]) == (0, "")
    assert sum(found["statuses"].values()) + found["left"] == found["requests"]
    assert found["statuses"][200] > 50
    assert found["growth"] < 0.3  # of a short attack: what is kept for the next question is still being filled
