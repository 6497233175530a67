"""Files: atomic writes, bounded reads, sealed JSON."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead import files
from clearhead.errors import RunError, TraceError


def test_a_write_replaces_a_link_and_leaves_what_it_pointed_to(tmp_path):
    (tmp_path / "diary.txt").write_text("mine")
    (tmp_path / "out.json").symlink_to(tmp_path / "diary.txt")
    files.write_text(tmp_path / "out.json", "ours")
    assert (tmp_path / "diary.txt").read_text() == "mine"
    assert (tmp_path / "out.json").read_text() == "ours"
    assert not (tmp_path / "out.json").is_symlink()


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    files.write_text(tmp_path / "a", "old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_text(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_partials_are_removed_by_name_and_nothing_else_is(tmp_path):
    litter = (".model.json.0a1b2c3d.partial", ".model.json.partial", "model.json.partial", "model.json.4711.partial")
    litter = (*litter, ".tmpA1b2C3")  # of safetensors
    kept = [".diary.partial", ".model.json.mine.partial", "model.json", "the-model.json.partial", ".tmp", "tmpA1b2C3"]
    for name in (*litter, *kept):
        (tmp_path / name).write_text("")
    (tmp_path / ".run.json.0a1b2c3d.partial").mkdir()
    files.remove_partials(tmp_path, r"model\.json|run\.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, ".run.json.0a1b2c3d.partial"])


def test_what_is_set_aside_has_the_first_number_that_is_free(tmp_path):
    for number, name in enumerate(["log.jsonl", "log.jsonl", "folder"]):
        (tmp_path / name).write_text(str(number))
        files.set_aside(tmp_path / name)
    (tmp_path / "log.3.jsonl").symlink_to(tmp_path / "none")
    (tmp_path / "log.jsonl").write_text("last")
    assert files.set_aside(tmp_path / "log.jsonl").name == "log.4.jsonl"
    texts = {path.name: path.read_text() for path in tmp_path.iterdir() if not path.is_symlink()}
    assert texts == {"log.1.jsonl": "0", "log.2.jsonl": "1", "folder.1": "2", "log.4.jsonl": "last"}


def test_an_error_of_the_system_is_told_as_one_of_the_run(tmp_path):
    with pytest.raises(RunError, match=r"it\.json: could not be written .*No such file.*--resume"):  # noqa: SIM117
        with files.os_errors_as_run_errors(tmp_path / "it.json"):
            files.write_text(tmp_path / "none" / "it.json", "text")


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "/dev/tty", "fifo", "folder"])
def test_only_regular_files_are_read(tmp_path, place):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="cannot be read"):
        files.read_json(tmp_path / place)


def test_a_file_that_is_too_large_says_so(tmp_path):
    (tmp_path / "large").write_bytes(b" " * 101)
    with pytest.raises(TraceError, match="it has 101 bytes, and 100 are the most"):
        files.read_json(tmp_path / "large", most=100, error=TraceError)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": NaN}', "there is no NaN in JSON"),
        ('{"a": -Infinity}', "there is no -Infinity in JSON"),
        ("1e999", "1e999 is too large for a number"),
        ('{"a": 1, "a": 2}', "the name 'a' is there twice"),
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ("[" * 100_000, "nested more than 64 deep"),
        ("1" * 10_000, "integer string conversion"),
        ('"\ud800"'.encode("utf-8", "surrogatepass"), "codec can't decode"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_what_is_no_json_is_refused_with_its_reason(text, said):
    with pytest.raises(ValueError, match=said):
        files.parse_json(text)


def test_depth_that_is_allowed_is_read():
    assert files.parse_json("[" * 63 + "]" * 63)


def test_sealed_content_comes_back_and_no_change_of_it_does(tmp_path):
    path = tmp_path / "model.json"
    sealed = files.write_sealed(path, {"heads": 4, "name": "ä"})
    assert (
        files.read_sealed(path)
        == sealed
        == {"format": files.FORMAT, "heads": 4, "name": "ä", "sha256": sealed["sha256"]}
    )
    for change in ({"heads": 2}, {"name": "a"}, {"format": True}, {"more": 1}, {"sha256": "0" * 64}):
        path.write_text(json.dumps({**sealed, **change}))
        with pytest.raises(RunError):
            files.read_sealed(path)


def test_what_json_changes_is_changed_before_the_checksum_is_made(tmp_path):
    sealed = files.write_sealed(tmp_path / "a", {"by distance": {2: 0.5, 10: (1, 2)}})
    assert files.read_sealed(tmp_path / "a") == sealed
    assert sealed["by distance"] == {"2": 0.5, "10": [1, 2]}


@pytest.mark.slow
def test_every_flipped_bit_of_sealed_content_is_seen(tmp_path):
    path = tmp_path / "model.json"
    sealed = files.write_sealed(path, {"heads": 4, "rate": 0.5, "name": "a b"})
    written = path.read_bytes()
    silent = []
    for bit in range(len(written) * 8):
        changed = bytearray(written)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            found = files.read_sealed(path)
        except RunError:
            continue
        if found != sealed:
            silent.append((bit, found))
    assert silent == []


def test_content_without_a_format_or_with_another_one_is_refused(tmp_path):
    path = tmp_path / "model.json"
    path.write_text('{"heads": 4}')
    with pytest.raises(RunError, match=r"model\.json: has no format version, so Clearhead did not write it"):
        files.read_sealed(path)
    for version in (files.FORMAT - 1, files.FORMAT + 1):
        path.write_text(json.dumps({"format": version}))
        with pytest.raises(RunError, match=f"written in format {version}, and this version of Clearhead reads format"):
            files.read_sealed(path)


def test_a_log_is_appended_to_and_never_through_a_link(tmp_path):
    for line in (b"one\n", b"two\n"):
        with files.open_log(tmp_path / "log") as log:
            log.write(line)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    (tmp_path / "link").symlink_to(tmp_path / "log")
    with pytest.raises(OSError, match="symbolic links"):
        files.open_log(tmp_path / "link")
    with pytest.raises(FileExistsError):
        files.open_log(tmp_path / "log", new=True)


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "/etc/passwd", "a\\b", "C:a", ".hidden", "a\0b"])
def test_a_file_that_is_named_in_a_file_lies_beside_it(name):
    with pytest.raises(RunError, match=r"model\.json: .* is no name of a file in this folder"):
        files.check_file_name(name, "model.json")


def test_a_name_that_is_there_twice_among_many_is_found_at_once():
    text = ",".join(f'"{i}":0' for i in range(100_000))
    with pytest.raises(ValueError, match="the name '99999' is there twice"):
        files.parse_json(f'{{{text},"99999":1}}')


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for read in (files.open_regular, files.read_bytes, files.sha256_of_file):
        with pytest.raises(OSError, match="no regular file"):
            read(tmp_path / "fifo")


def test_a_folder_gets_its_name_once_all_that_is_in_it_is_flushed(tmp_path, monkeypatch):
    """What a library writes is not flushed by it: after a power cut the folder would be there, and its files empty."""
    flushed, fsync = set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.add(os.fstat(handle).st_ino), fsync(handle)))
    with files.replacing_folder(tmp_path / "folder") as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "weights").write_bytes(b"1")
    assert {path.stat().st_ino for path in (tmp_path / "folder").rglob("*")} <= flushed


def stop_within(place, name):
    with files.replacing_folder(place) as partial:
        (partial / name).touch()
        raise KeyboardInterrupt


def test_a_folder_is_there_whole_or_not_at_all(tmp_path):
    place = tmp_path / "new" / "deep" / "folder"
    with pytest.raises(KeyboardInterrupt):
        stop_within(place, "half")
    assert list(tmp_path.iterdir()) == []
    place.mkdir(parents=True)  # an empty folder is replaced
    with files.replacing_folder(place) as partial:
        (partial / "whole").touch()
        assert list(place.iterdir()) == []
    assert [one.name for one in place.iterdir()] == ["whole"]
    assert list(place.parent.iterdir()) == [place]


def test_a_folder_beside_another_is_not_removed_with_it(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        stop_within(tmp_path / "new" / "folder", "../of somebody else")
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["of somebody else"]


KILLED = """
import os, sys
from pathlib import Path
from clearhead import files
with files.replacing_folder(Path(sys.argv[1])) as partial:
    (partial / "half").touch()
    print("written", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_of_a_folder_is_removed_by_the_next_and_a_living_ones_is_not(tmp_path):
    def begin():
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "folder")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        return process

    with begin() as killed:
        killed.kill()
    (tmp_path / ".folder.mine.partial").mkdir()
    with begin() as living:
        assert len(list(tmp_path.glob(".folder.????????.partial"))) == 1
        with files.replacing_folder(tmp_path / "folder") as partial:
            (partial / "whole").touch()
        assert len(list(tmp_path.glob(".folder.????????.partial"))) == 1
        living.kill()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["whole"]
    assert (tmp_path / ".folder.mine.partial").exists()


def test_a_new_folder_that_another_process_took_for_abandoned_is_made_again(tmp_path, monkeypatch):
    lock, locked = files.lock_folder, []

    def remove_first(folder):
        locked.append(folder)
        if len(locked) == 1:  # it is locked there at this moment
            raise BlockingIOError
        handle = lock(folder)
        if len(locked) == 2:  # it was removed there, and given free
            folder.rmdir()
        return handle

    monkeypatch.setattr(files, "lock_folder", remove_first)
    with files.replacing_folder(tmp_path / "folder") as partial:
        assert partial == locked[2]
        (partial / "whole").touch()
    assert (tmp_path / "folder" / "whole").exists()


def test_folders_that_were_made_here_are_known(tmp_path):
    (tmp_path / "a").mkdir()
    made = files.make_folders(tmp_path / "a" / "b" / "c")
    assert made == [tmp_path / "a" / "b" / "c", tmp_path / "a" / "b"]
    assert files.make_folders(tmp_path / "a" / "b") == []
    (tmp_path / "a" / "b" / "mine").touch()
    files.remove_empty(made)
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["mine"]
    with pytest.raises(NotADirectoryError):
        files.make_folders(tmp_path / "a" / "b" / "mine")


def test_the_first_error_is_raised_where_removing_fails_too(tmp_path, monkeypatch):
    def broken(*args, **named):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", broken)
    with pytest.raises(OSError, match="No space left"), files.replacing(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device")
