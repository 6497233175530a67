"""The tensors of a folder by name, whole or in shards."""

import hashlib
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.errors import OptionError, RunError
from clearhead.interop.run import import_model
from clearhead.interop.tensor_files import Tensors, file_in
from clearhead.training.run import load
from tests.interop import saved_models


def test_an_index_that_names_a_tensor_its_shard_lacks_is_told(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with Tensors(tmp_path) as found:
        assert (list(found), found.shape("a"), found["a"].tolist()) == (["a"], [2], [1, 1])
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b" * 5000: "one.safetensors"}}))
    with pytest.raises(OptionError, match=r"index\.json: b{200} is not in 'one\.safetensors'$"):
        Tensors(tmp_path)


SECRET = "{{ 'the password is swordfish' }}"
READ = (
    *("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
)
"""Every file that an import reads."""


@pytest.fixture
def source(tmp_path):
    """A model in a folder, and beside the folder a file that is none of the model's business."""
    home = tmp_path / "download" / "model"
    saved_models.save("llama", home, rows=3)
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    return home


def move_out(path, to):
    """Put a file elsewhere and a link in its place; what was not there is a copy of nothing."""
    if path.exists():
        path.rename(to)
    else:
        to.write_text("{}")
    path.unlink(missing_ok=True)
    path.symlink_to(to)


@pytest.mark.parametrize("how", ["absolute", "relative", "through a folder"])
def test_a_secret_behind_a_link_is_not_copied_into_the_run(source, tmp_path, how):
    link = source / "chat_template.jinja"
    link.unlink(missing_ok=True)
    if how == "through a folder":
        (source / "inner").symlink_to(tmp_path)
        link.symlink_to("inner/secret")
    else:
        link.symlink_to(tmp_path / "secret" if how == "absolute" else "../../secret")
    with pytest.raises(OptionError, match=r"chat_template\.jinja: is a link that leads out of the folder"):
        import_model(source, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", READ)
def test_no_file_that_an_import_reads_may_lie_elsewhere(source, tmp_path, name):
    if name == "model.safetensors.index.json":
        (source / "model.safetensors").rename(source / "model-00001-of-00001.safetensors")
        names = load_file(source / "model-00001-of-00001.safetensors")
        index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
        (source / name).write_text(json.dumps(index))
    move_out(source / name, tmp_path / "elsewhere")
    with pytest.raises(OptionError, match=rf"{name}: is a link that leads out of the folder, to .*elsewhere"):
        import_model(source, tmp_path / "run")


@pytest.mark.parametrize(
    "shard", ["../shard.safetensors", "ABSOLUTE", "..", "", "a/../../shard.safetensors", "link", "x" * 5000]
)
def test_a_shard_is_a_file_of_the_folder(source, tmp_path, shard):
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    save_file(tensors, source.parent / "shard.safetensors")
    if shard == "link":
        (source / "link").symlink_to("../shard.safetensors")
    named = str(source.parent / "shard.safetensors") if shard == "ABSOLUTE" else shard
    index = {"weight_map": dict.fromkeys(tensors, named)}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(OptionError, match=r"is no name of a file in this folder|leads out of the folder"):
        import_model(source, tmp_path / "run")


def test_links_within_the_folder_are_followed(source, tmp_path):
    (source / "files").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (source / name).rename(source / "files" / name)
        (source / name).symlink_to(f"files/{name}")
    linked = tmp_path / "linked"
    linked.symlink_to(source)  # the folder that the user names may be a link itself
    assert import_model(linked, tmp_path / "run").step == 0


def as_snapshot(source, repository):
    """Lay a folder out as the cache of the hub does: links in a snapshot, to blobs named by their hashes."""
    snapshot, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for path in source.iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, blobs / digest)
        (snapshot / path.name).symlink_to(f"../../blobs/{digest}")
    return snapshot


def test_a_snapshot_of_the_hub_is_read_with_the_blobs_of_its_own_repository(source, tmp_path):
    snapshot = as_snapshot(source, tmp_path / "models--someone--tiny")
    assert import_model(snapshot, tmp_path / "run").step == 0


@pytest.mark.parametrize("way", ["another repository", "blobs are a link", "no repository", "out of blobs"])
def test_a_snapshot_reads_nothing_else(source, tmp_path, way):
    repository = tmp_path / ("models--someone--tiny" if way != "no repository" else "someone-tiny")
    snapshot = as_snapshot(source, repository)
    link, digest = snapshot / "config.json", os.path.basename(os.readlink(snapshot / "config.json"))
    if way == "another repository":
        link.unlink()
        (tmp_path / "models--other" / "blobs").mkdir(parents=True)
        shutil.copy(source / "config.json", tmp_path / "models--other" / "blobs" / digest)
        link.symlink_to(f"../../../models--other/blobs/{digest}")
    elif way == "blobs are a link":
        (repository / "blobs").rename(tmp_path / "blobs")
        (repository / "blobs").symlink_to(tmp_path / "blobs")
    elif way == "out of blobs":
        (repository / "blobs" / digest).rename(tmp_path / "secret")
        (repository / "blobs" / digest).symlink_to(tmp_path / "secret")
    with pytest.raises(OptionError, match=r"config\.json: is a link that leads out of the folder"):
        import_model(snapshot, tmp_path / "run")


def test_a_name_that_is_none_is_told_shortly(tmp_path):
    with pytest.raises(OptionError, match="is no name of a file in this folder, and no other is read") as raised:
        file_in(tmp_path, "../" * 2000)
    assert len(str(raised.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json"])
def test_a_run_reads_no_link_out_of_it(source, tmp_path, name):
    """Though the file that it leads to has the same content, and so the same checksum."""
    (source / "chat_template.jinja").write_text("{{ messages }}")
    folder = import_model(source, tmp_path / "run").folder
    move_out(folder.path / name, tmp_path / "elsewhere")
    with pytest.raises(RunError, match=rf"{name}: is a link that leads out of the run, and is not read"):
        folder.chat() if name.startswith("chat") else load(folder.path)
