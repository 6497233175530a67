"""The tensors of a folder by name, whole or in shards."""

import json

import pytest
import torch
from safetensors.torch import save_file

from clearhead.errors import OptionError
from clearhead.interop.tensor_files import Tensors


def test_an_index_that_names_a_tensor_its_shard_lacks_is_told(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with Tensors(tmp_path) as found:
        assert (list(found), found.shape("a"), found["a"].tolist()) == (["a"], [2], [1, 1])
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b" * 5000: "one.safetensors"}}))
    with pytest.raises(OptionError, match=r"index\.json: b{200} is not in 'one\.safetensors'$"):
        Tensors(tmp_path)
