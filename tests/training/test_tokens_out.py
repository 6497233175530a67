"""A run's token ids as files of other programs, which a run is trained on again."""

import numpy as np
import pytest

from clearhead.errors import OptionError, RunError
from clearhead.text.token_files import FORMATS, TokenFiles, read_ids
from clearhead.training.resume import resume
from clearhead.training.tokens_out import write_token_files
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import quiet

OPTIONS = {"task": "generate", "log": quiet, "watcher": quiet, "size": "20k", "context": 16, "batch_tokens": 128}


def ids_of(path):
    pieces = [piece for file in TokenFiles(paths=(str(path),)).files for piece in read_ids(file)]
    return np.concatenate(pieces).tolist()


def test_what_a_run_learned_from_is_written_and_another_learns_from_it(tmp_path):
    lines = small_runs.write_lines(tmp_path / "lines", [f"line {i} of a text" for i in range(200)])
    train(tmp_path / "run", text=[lines], documents="line", steps=3, **OPTIONS)
    for form in FORMATS:
        write_token_files(tmp_path / "run", tmp_path / form, form)
    files = {"text": [str(tmp_path / "llm.c" / "train.bin")], "dev": [str(tmp_path / "llm.c" / "val.bin")]}
    train(tmp_path / "again", steps=3, **files, **OPTIONS)
    write_token_files(tmp_path / "again", tmp_path / "out", "nanogpt")
    for part in ("train", "val"):
        expected = ids_of(tmp_path / "out" / f"{part}.bin")
        assert expected
        for form in ("nanogpt", "llm.c", "megatron"):
            assert ids_of(tmp_path / form / f"{part}.bin") == expected
        assert ids_of(tmp_path / "mds" / part / "index.json") == expected
    assert resume(tmp_path / "again", log=quiet, watcher=quiet).step == 3
    with pytest.raises(RunError, match="is there already"):
        write_token_files(tmp_path / "run", tmp_path / "out", "nanogpt")
    with pytest.raises(OptionError, match="form: expected nanogpt"):
        write_token_files(tmp_path / "run", tmp_path / "other", "webdataset")
    assert not (tmp_path / "other").exists()
