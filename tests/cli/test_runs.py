"""`clearhead runs`: every run folder in a row, broken ones too."""

import json
import os
import shutil

import pytest

from clearhead.cli import run
from clearhead.files import seal, write_sealed
from clearhead.training.folder import RunFolder
from clearhead.training.reporting import read_metrics


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of runs: one that ended, and one deeper that did not."""
    home = tmp_path_factory.mktemp("here")
    table = home / "t.tsv"
    table.write_text("text\tlabel\n" + "one two\tx\nthree four\ty\n" * 60)
    ended = home / "runs" / "ended"
    args = ["--task", "classify", "--table", str(table), "--size", "30k", "--steps", "2", "--threads", "1"]
    assert run(["train", str(ended), *args]) == 0
    begun = home / "runs" / "more" / "open"
    shutil.copytree(ended, begun)
    (begun / "evaluation.json").unlink()
    [checkpoint] = (begun / "checkpoints").glob("step-*")
    state = json.loads((checkpoint / "state.json").read_text())
    write_sealed(checkpoint / "state.json", state | {"finished": False})
    return home / "runs"


@pytest.fixture
def copied(trained, tmp_path):
    """The same folder, to be spoiled."""
    return shutil.copytree(trained, tmp_path / "runs")


@pytest.fixture
def command(capsys, plain_terminal):
    def ran(*args):
        capsys.readouterr()
        code = run(["runs", *map(str, args)])
        return code, *capsys.readouterr()

    return ran


def last_evaluation(trained):
    """Return the last scores in training of the run that has not ended: those of the Transformer alone."""
    lines = read_metrics(trained / "more" / "open" / "metrics.jsonl")
    line = [line for line in lines if line["kind"] == "evaluation"][-1]
    return {**line, **line["scores"]}


@pytest.mark.slow
def test_every_run_has_a_row(command, trained):
    code, out, err = command(trained)
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()[1:]) <= 80
    head, *rows = [line.split() for line in out.splitlines()[1:] if line.strip()]
    assert head == ["run", "task", "steps", "score", "loss", "size", "disk", "date"]
    evaluation = json.loads((trained / "ended" / "evaluation.json").read_text())
    begun = last_evaluation(trained)
    for row, name, steps, scores in ((rows[0], "ended", "2", evaluation), (rows[1], "more/open", "2…", begun)):
        assert row[:4] == [name, "classify", steps, "accuracy"]
        assert row[4:7] == [f"{100 * scores['accuracy']:.1f}", "%", f"{scores['loss']:.4f}"]
        assert row[7] == f"{evaluation['parameters'] / 1000:.0f}k"
    assert "not finished. Continue it:  clearhead train RUN --resume" in out


def test_json_has_the_same_for_a_program(command, trained):
    code, out, _ = command(trained, "--json")
    told = json.loads(out)
    assert (code, told["folder"]) == (0, str(trained))
    ended, begun = told["runs"]
    evaluation = json.loads((trained / "ended" / "evaluation.json").read_text())
    for found, scores in ((ended, evaluation), (begun, last_evaluation(trained))):
        assert found["scores"] == {name: scores[name] for name in ("accuracy", "macro_f1", "labels_asked")}
        assert found["loss"] == scores["loss"]
    assert (ended["finished"], begun["finished"]) == (True, False)
    assert ended["parameters"] == begun["parameters"] == evaluation["parameters"]
    assert ended["path"] == str(trained / "ended")
    assert ended["disk_bytes"] == sum(one.lstat().st_size for one in (trained / "ended").rglob("*") if one.is_file())


def test_a_run_folder_itself_is_a_row(command, trained):
    assert [one["name"] for one in json.loads(command(trained / "ended", "--json")[1])["runs"]] == ["ended"]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("recipe.json", None, "it has no recipe.json"),
        ("recipe.json", "{", "is not JSON"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)  # told by the same lines, or by tests/test_files.py
            for case in (
                ("evaluation.json", "nonsense", "is not JSON"),
                ("recipe.json", json.dumps(seal({"is": "Unaveraged"})), "holds no recipe but Unaveraged"),
                ("recipe.json", "[" * 100_000, "nested more than 64 deep"),
                ("evaluation.json", "[]", "expected a JSON object; came list"),
            )
        ),
        ("recipe.json", json.dumps(seal({"is": "Unheard"})), "there is no 'Unheard' in this version"),
        ("evaluation.json", '{"scores": 3}', "has no format version"),
        ("run.json", "{", "is not JSON"),
    ],
)
@pytest.mark.slow
def test_a_broken_folder_is_listed_as_such_beside_the_others(command, copied, file, text, said):
    broken = copied / "ended"
    (broken / file).unlink() if text is None else (broken / file).write_text(text)
    code, out, err = command(copied)
    assert (code, err) == (0, "")
    [row] = [line for line in out.splitlines() if line.startswith("  ended")]
    assert "broken" in row
    assert said in row
    assert "more/open" in out
    told = json.loads(command(copied, "--json")[1])["runs"]
    assert [said in (one["problem"] or "") for one in told] == [True, False]


def test_an_empty_folder_has_none_and_a_missing_one_is_told(command, tmp_path):
    code, out, _ = command(tmp_path)
    assert code == 0
    assert "There is none yet" in out
    assert json.loads(command(tmp_path, "--json")[1])["runs"] == []
    code, out, err = command(tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert "there is no folder" in err


def spoil_with_links(folder):
    (folder / "recipe.json").unlink()
    (folder / "recipe.json").symlink_to(folder / "recipe.json")


def spoil_with_device(folder):
    (folder / "evaluation.json").unlink()
    (folder / "evaluation.json").symlink_to("/dev/zero")


def spoil_with_pipe(folder):
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")


def spoil_with_size(folder):
    with (folder / "evaluation.json").open("ab") as file:
        file.truncate(70_000_000)


SPOILED = {
    "a link to itself": (spoil_with_links, "symbolic links"),
    "a device": (spoil_with_device, "no regular file"),
    "a pipe": (spoil_with_pipe, "no regular file"),
    "a huge file": (spoil_with_size, "70,000,000 bytes, and 64,000,000 are the most"),
}


@pytest.mark.parametrize(("spoil", "said"), SPOILED.values(), ids=SPOILED.keys())
@pytest.mark.slow
def test_a_folder_that_cannot_be_read_is_listed_beside_the_others(command, copied, spoil, said):
    spoil(copied / "ended")
    code, out, err = command(copied)
    assert (code, err) == (0, "")
    assert said in next(line for line in out.splitlines() if line.startswith("  ended"))
    assert "more/open" in out


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), PermissionError(13, "Permission denied")])
def test_no_error_of_one_folder_hides_the_others(command, copied, monkeypatch, error):
    origin = RunFolder.origin

    def fail(folder):
        if folder.path.name == "ended":
            raise error
        return origin(folder)

    monkeypatch.setattr(RunFolder, "origin", fail)
    code, out, err = command(copied)
    assert (code, err) == (0, "")
    assert "ended  broken  cannot be read" in out
    assert "more/open" in out


def test_folders_that_link_to_each_other_are_looked_into_once_each(command, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    code, out, _ = command(tmp_path)
    assert code == 0
    assert "There is none yet" in out
