"""Tensors in the files of torch are read as weights alone; whatever else such a file holds is refused and never run."""

import contextlib
import json
import pickle
import random
import zipfile

import pytest
import torch

from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from clearhead.interop.tensor_files import read_archive
from tests.interop.peers import save
from tests.peers import late

GPT2Config, GPT2LMHeadModel = late("transformers", "GPT2Config", "GPT2LMHeadModel")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    peer = save(GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=9, n_embd=8, n_layer=2, n_head=2)), folder)
    return folder, peer.state_dict()


def folder_with(source, folder, tensors, name="pytorch_model.bin"):
    (folder / "config.json").write_bytes((source[0] / "config.json").read_bytes())
    torch.save(tensors, folder / name)
    return folder


def same(folder, source):
    expected = read_hugging_face(source[0]).model.state_dict()
    mine = read_hugging_face(folder).model.state_dict()
    assert all(torch.equal(mine[name], tensor) for name, tensor in expected.items())


def test_what_torch_saved_is_read_with_its_tied_table(source, tmp_path):
    same(folder_with(source, tmp_path, source[1]), source)


def test_shards_of_torch_are_read(source, tmp_path):
    names = list(source[1])
    halves = {"pytorch_model-1.bin": names[:7], "pytorch_model-2.bin": names[7:]}
    for file, own in halves.items():
        folder_with(source, tmp_path, {name: source[1][name] for name in own}, file)
    places = {name: file for file, own in halves.items() for name in own}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    same(tmp_path, source)
    (tmp_path / "pytorch_model-2.bin").unlink()
    with pytest.raises(OptionError, match=r"pytorch_model-2\.bin: there is no such file"):
        read_hugging_face(tmp_path)


class Hostile:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('it ran')",))


class Takes:
    """Calls a function when it is unpickled, one that torch's reader of weights alone would call too."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


SHARED = torch.zeros(10_000)


def test_every_type_and_stride_is_read_as_torch_reads_it(tmp_path):
    table = torch.arange(24.0).reshape(4, 6)
    dtypes = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8)
    held = {str(dtype): table.to(dtype) for dtype in (*dtypes, torch.uint8, torch.bool)}
    held |= {"turned": table.T, "part": table[1:3, ::2], "again": table, "none": table[:0], "one": table[1, 2]}
    held["trained"] = torch.nn.Parameter(table)
    torch.save(held, tmp_path / "x.bin")
    mine, theirs = read_archive(tmp_path / "x.bin"), torch.load(tmp_path / "x.bin", weights_only=True)
    assert list(mine) == list(theirs)
    for name, tensor in theirs.items():
        assert mine[name].dtype == tensor.dtype
        assert mine[name].shape == tensor.shape
        assert torch.equal(mine[name], tensor), name


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"a": Hostile()}, r"is no file of weights alone .*save it as safetensors"),
        ([torch.zeros(2)], "expected names with tensors, a state dict"),
        ({"state": {"a": torch.zeros(2)}}, "expected names with tensors, a state dict"),
        ({"a": torch.zeros(1).expand(10**12)}, r"a claims \(1000000000000,\), more numbers than the file holds"),
        ({"a": torch.eye(2).to_sparse()}, "is no file of weights alone"),
        ({"a": Takes(bytearray, 10**11)}, r"is no file of weights alone \(it calls __builtin__ bytearray\)"),
        ({((1,), 2): 1}, "names that are no texts"),  # 60 such around each other take years to hash
        ({str(i): SHARED for i in range(100)}, "more numbers than the file holds"),
    ],
    ids=["code", "list", "nested", "expanded", "sparse", "memory", "time", "shared"],
)
def test_anything_but_weights_is_refused(held, message, tmp_path):
    torch.save(held, tmp_path / "x.bin")
    with pytest.raises(OptionError, match=message):
        read_archive(tmp_path / "x.bin")


def test_older_and_compressed_files_are_refused_with_the_way_to_convert(tmp_path):
    path = tmp_path / "x.bin"
    torch.save({"a": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(OptionError, match=r"is no archive as torch has written since 1\.6 .*save_pretrained"):
        read_archive(path)
    path.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(OptionError, match="is no archive as torch has written"):
        read_archive(path)
    torch.save({"a": torch.zeros(100_000)}, path)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "y.bin", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    with pytest.raises(OptionError, match="is compressed or claims to be larger than it is"):
        read_archive(tmp_path / "y.bin")


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_is_an_error_that_says_so(seed, source, tmp_path):
    path = folder_with(source, tmp_path, source[1]) / "pytorch_model.bin"
    rng, whole = random.Random(seed), bytearray(path.read_bytes())
    if seed % 2:
        path.write_bytes(whole[: rng.randrange(len(whole))])
    else:
        for _ in range(rng.randint(1, 20)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        path.write_bytes(whole)
    with contextlib.suppress(OptionError):  # and nothing else; a number that was changed is a number all the same
        read_hugging_face(tmp_path)
