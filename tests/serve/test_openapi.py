"""The schema of every route, and requests made by it: whatever a field holds, nothing is an error of the server's."""

import contextlib
import http.client
import json

import pytest

from clearhead.serve.api.routes import Api
from clearhead.serve.bodies import BODIES
from clearhead.serve.explorer import Explorer
from clearhead.serve.explorer_routes import ExplorerPages
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Logs
from clearhead.serve.openapi import fields_of
from clearhead.serve.question_table import QUESTIONS
from clearhead.serve.server import Server
from tests.serve.api_serving import running
from tests.serve.requests_by_schema import KNOWN, ODD, Maker

pytestmark = pytest.mark.slow

SENT = BODIES | {f"/api/{name}": kind for name, kind in QUESTIONS.items() if kind.sent}
MODELS = {
    "/v1/translate": "translator", "/v1/completions": "documents", "/v1/chat/completions": "talker",
    "/v1/classify": "classifier", "/v1/fill": "filler", "/v1/embeddings": "filler", "/v1/answer": "classifier",
}  # fmt: skip


@pytest.fixture(scope="module")
def both(api_runs, tmp_path_factory):
    """A server of the API and of the explorer, and what sends requests to it on a connection that is kept."""
    static = tmp_path_factory.mktemp("page")
    (static / "index.html").write_text("page")
    lines = []
    services = (
        Api(list(api_runs.values()), names=list(api_runs)),
        ExplorerPages(Explorer(api_runs["translator"]), static),
    )
    server = Server(*services, limits=Limits(tokens=16, idle=600.0), logs=Logs("json", write=lines.append))
    with running(server), contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.place.port)) as connection:

        def send(method, path, body=None):
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, f"/{server.place.token}{path}", body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read()

        yield send, lines


def schema_of(send):
    return json.loads(send("GET", "/openapi.json")[1])


def test_both_tables_are_served_and_described(both):
    send, _ = both
    schema = schema_of(send)
    assert set(SENT) < set(schema["paths"])
    assert {"/api/trace/{trace}/tile", "/v1/models/{name}", "/healthz"} < set(schema["paths"])
    assert schema["components"]["schemas"]["FillBody"]["required"] == ["input"]
    assert send("GET", "/")[1] == b"page"
    assert send("GET", "/v1/models")[0] == send("GET", "/api/run")[0] == 200


@pytest.mark.parametrize("path", SENT)
def test_a_body_may_have_the_names_of_its_type_and_no_others(both, path):
    send, _ = both
    for name in fields_of(SENT[path])[0]:
        assert b"is not an option here" not in send("POST", path, json.dumps({name: {"x": 1}}).encode())[1]
    status, body = send("POST", path, b'{"nothing": 1}')
    assert (status, b"'nothing' is not an option here" in body) == (400, True)


def errors_of(both, seed, repeats):
    """What was an error of the server's, and how many requests there were, by status."""
    send, lines = both
    known = dict(KNOWN, model=tuple(one["id"] for one in json.loads(send("GET", "/v1/models")[1])["data"]))
    trace = json.loads(send("POST", "/api/trace", b'{"source": "eins zwei", "target": "12"}')[1])["id"]
    maker = Maker(schema_of(send), seed, known | {"trace": (trace,)}, MODELS)
    statuses, wrong = {}, []
    for method, path, body in maker.requests(repeats):
        status, reply = send(method, path, body)
        statuses[status] = statuses.get(status, 0) + 1
        if status >= 500 or b"should not happen" in reply:
            wrong.append((method, str(path)[:300], (body or b"")[:600], status, reply[:300]))
    failures = [line for line in lines if json.loads(line)["event"] == "failure"]
    return wrong, failures, statuses


def test_an_odd_value_in_any_field_is_no_error_of_the_servers(both):
    wrong, failures, statuses = errors_of(both, seed=1, repeats=1)
    assert (wrong[:3], failures[:3]) == ([], [])
    assert statuses[200] > 20
    assert statuses[400] > 200


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 4))
def test_many_odd_values_are_none_either(both, seed):
    wrong, failures, _ = errors_of(both, seed, repeats=len(ODD))
    assert (wrong[:3], failures[:3]) == ([], [])
