"""A served run stays as it was loaded, whatever becomes of its folder; names are those of the folders, or given."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import clearhead as ch
from clearhead.errors import OptionError
from clearhead.serve.api.served import names_of
from clearhead.text.templates import ChatTemplate
from tests.serve.api_serving import serving


@pytest.mark.slow
def test_a_folder_that_is_replaced_or_damaged_changes_no_answer(api_runs, tmp_path):
    folder = tmp_path / "served"
    shutil.copytree(api_runs["translator"].folder.path, folder)
    text = "zwei null vier drei"
    with serving([ch.load(folder, device="cpu")]) as client:
        before = client.answer("/v1/translate", input=text, attention=True)
        facts = client.get("/v1/models/served")
        for file in folder.rglob("*"):
            if file.is_file():  # in place, as no atomic writer would do it: a mapped file would change under the model
                file.write_bytes(b"\0" * (file.stat().st_size // 2))
        assert client.answer("/v1/translate", input=text, attention=True) == before
        shutil.rmtree(folder)
        shutil.copytree(api_runs["classifier"].folder.path, folder)
        assert client.answer("/v1/translate", input=text, attention=True) == before
        assert client.get("/v1/models/served") == facts
        assert (facts[1]["task"], facts[1]["step"]) == ("translate", 60)


def test_names_are_of_the_folders_or_given_and_each_is_one(api_runs):
    two = [api_runs["translator"].folder, api_runs["documents"].folder]
    assert names_of(two[:1], ()) == ["run"]
    assert names_of(two, ("a", "b")) == ["a", "b"]
    with pytest.raises(OptionError, match="two runs are called 'run'"):
        names_of(two, ())
    with pytest.raises(OptionError, match="2 runs and 1 names"):
        names_of(two, ("a",))


def test_a_request_must_name_one_of_several_and_one_that_does_it(api):
    status, param, message = api.refused("/v1/completions", prompt="the")
    assert (status, param) == (400, "model")
    assert "must name one: translator, documents" in message
    assert "answers at /v1/translate, /v1/answer" in api.refused("/v1/fill", model="translator", input="x")[2]
    assert "has no chat template" in api.refused("/v1/chat/completions", model="documents", messages=[])[2]


@pytest.mark.slow
def test_a_template_that_does_not_end_stops_nobody_else(api_runs, monkeypatch):
    """Its request is refused; meanwhile others are answered."""
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    runs = [api_runs["talker"], api_runs["documents"]]
    monkeypatch.setitem(runs[0].folder.__dict__, "chat", lambda: ChatTemplate(endless))
    asked = {"model": "talker", "messages": [{"role": "user", "content": "x"}]}
    with serving(runs, names=["talker", "documents"]) as client, ThreadPoolExecutor(1) as pool:
        chat = pool.submit(client.refused, "/v1/chat/completions", **asked)
        assert client.get("/healthz")[0] == 200
        assert client.post("/v1/completions", model="documents", prompt="the", max_tokens=2)[0] == 200
        assert not chat.done()
        status, param, message = chat.result()
    assert (status, param) == (400, "messages")
    assert "was given up after 2 s of work" in message
