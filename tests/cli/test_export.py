"""`clearhead export`, what `describe` says of it, and `train --must-export`."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("plain_terminal")


def test_it_says_what_was_written_and_how_it_was_checked(classifier, command, tmp_path):
    code, out, _ = command("export", classifier.folder.path, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert code == 0
    first, second = out.splitlines()
    assert first.startswith(f"{tmp_path / 'out'}: ctranslate2, float32, 5 files, ")
    assert "texts of the run's validation set: vectors of" in second
    assert "(tolerance 0.001)" in second


def test_json_has_the_figures(documents, command, tmp_path):
    asked = ("--to", "ctranslate2", "-o", tmp_path / "out", "--quantization", "int8", "--json")
    code, out, _ = command("export", documents.folder.path, *asked)
    found = json.loads(out)
    assert code == 0
    assert (found["to"], found["quantization"]) == ("ctranslate2", "int8")
    assert found["difference"] < found["tolerance"]
    assert "model.bin" in found["files"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "tflite"), "there is no format 'tflite' to export to; there are hf, ctranslate2"),
        (("--to", "ctranslate2", "--quantization", "q8_0"), "ctranslate2 is written in float32, int8; came 'q8_0'"),
        (("--to", "gguf"), "no tokenisers of kind metaspace"),
        (("--to", "ctranslate2", "--step", "7"), "there is no checkpoint of step 7"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(documents, command, tmp_path, options, said):
    code, out, err = command("export", documents.folder.path, "-o", tmp_path / "out", *options)
    assert (code, out) == (2 if "--quantization" in options else 1, "")
    assert said in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_as_it_was(documents, command, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    code, _, err = command("export", documents.folder.path, "--to", "ctranslate2", "-o", tmp_path)
    assert code == 1
    assert "is there already, and is not empty" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_describe_lists_what_blocks_which_export(filler, command):
    code, out, _ = command("describe", filler.folder.path, "--json")
    assert code == 0
    found = json.loads(out)["exports"]
    assert found["ctranslate2"] == found["onnx"] == found["torch"] == []
    assert found["gguf"] == ["models that fill"]
    assert "Sinusoidal" in found["hf"][0]
    assert "export to gguf: blocked, no models that fill" in command("describe", filler.folder.path)[1]
    assert json.loads(command("describe", "tiny", "--json")[1])["exports"] is None


@pytest.mark.slow
def test_an_exportable_model_is_chosen_and_what_was_named_is_refused_untrained(command, tmp_path):
    text = tmp_path / "text"
    text.write_text("a b c\n" * 50)
    asked = ("train", tmp_path / "run", "--task", "generate", "--text", text, "--must-export")
    code, out, err = command(*asked, "onnx, ctranslate2,gguf", "--dry-run")
    assert (code, "the model is with GELU by the tanh formula" in err) == (0, True)
    assert json.loads(out)["model"]["blocks"][0]["feed_forward"]["form"] == "tanh"
    code, _, err = command(*asked, "onnx,gguf", "--attention", "argmax")
    assert code == 2
    assert "cannot be exported to gguf, which has no such layers" in err
    assert not (tmp_path / "run").exists()
    assert command(*asked, "onnx, ctranslate2", "--dry-run")[2] == ""
    assert "there is no format 'pdf'" in command(*asked, "pdf")[2]
