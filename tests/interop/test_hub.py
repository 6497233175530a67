"""`hub:ORG/NAME` fetches from the server that HF_ENDPOINT names, here a small one on this machine."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.interop.hub import fetch_from_hub
from clearhead.interop.run import import_model
from tests.interop import saved_models

pytestmark = pytest.mark.usefixtures("one_thread")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/tiny"


class Hub(BaseHTTPRequestHandler):
    """The addresses that `huggingface_hub` asks for: what a repository holds, and its files."""

    folder = None
    asked: list[str]

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        files = sorted(file for file in self.folder.rglob("*") if file.is_file())
        names = {file.relative_to(self.folder).as_posix(): file.read_bytes() for file in files}
        if path.startswith(f"/api/models/{REPOSITORY}/revision/"):
            self.reply_json({"id": REPOSITORY, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]})
        elif path.startswith(f"/api/models/{REPOSITORY}/tree/{COMMIT}"):
            self.reply_json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in names.items()
                ]
            )
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
            data = names[path.rpartition("/")[2]]
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            self.reply(200, data, {"ETag": etag, "X-Repo-Commit": COMMIT})
        else:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def reply_json(self, told):
        self.reply(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def reply(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args):
        """Says nothing."""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server with one repository; the class that answers has what was asked."""
    handler = type("Answering", (Hub,), {"folder": tmp_path / "source", "asked": []})
    saved_models.save("llama", handler.folder)
    (handler.folder / "README.md").write_text("a card")
    (handler.folder / "pytorch_model.bin").write_bytes(b"never fetched")
    (handler.folder / "onnx").mkdir()
    (handler.folder / "onnx" / "model.safetensors").write_bytes(b"never fetched")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    yield handler
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.mark.slow
def test_a_model_is_fetched_and_imported(hub, tmp_path):
    run = import_model(f"hub:{REPOSITORY}", tmp_path / "run", device="cpu")
    assert run.folder.origin().source == f"hub:{REPOSITORY}"
    local = import_model(hub.folder, tmp_path / "local", device="cpu")
    for name, one in run.model.named_parameters():
        assert torch.equal(one, local.model.get_parameter(name))
    assert not any("README" in one or ".bin" in one or "onnx" in one for one in hub.asked)
    first = len(hub.asked)
    home = fetch_from_hub(f"hub:{REPOSITORY}@{COMMIT}", cache=tmp_path / "cache")
    assert (home / "config.json").exists()
    assert not any(one.startswith("GET /someone/tiny/resolve") for one in hub.asked[first:])


@pytest.mark.slow
def test_a_pickle_is_asked_for_only_where_there_is_nothing_else(hub, tmp_path):
    (hub.folder / "model.safetensors").unlink()
    home = fetch_from_hub(f"hub:{REPOSITORY}", cache=tmp_path / "other")
    assert (home / "pytorch_model.bin").exists()
    assert not (home / "README.md").exists()


@pytest.mark.slow
def test_what_is_not_there_is_told_and_leaves_nothing(hub, tmp_path):
    with pytest.raises(OptionError, match="hub:someone/else: could not be fetched"):
        import_model("hub:someone/else", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "a b", "https://example.org/x", "a/b@"])
def test_what_is_no_name_is_not_asked_for(name, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OptionError, match="expected hub:ORG/NAME, such as"):
        fetch_from_hub(f"hub:{name}")
