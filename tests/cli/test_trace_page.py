"""`clearhead trace --attribute` and `--patch-from`: the numbers of `ch.attribute` and `ch.patch` in the terminal."""

import json

import pytest

import clearhead as ch
from clearhead.cli import run

TEXT, OTHER = "zwei drei vier", "drei drei vier"


@pytest.fixture
def command(capsys, plain_terminal):
    def ran(*args):
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        return code, *capsys.readouterr()

    return ran


def test_the_parts_are_those_of_python(command, translator):
    first, second = (one.text for one in ch.trace(translator, TEXT).candidates[1][:2])
    found = ch.attribute(translator, TEXT, answer=first, other=second, place=1)
    options = ("--attribute", "--answer", first, "--other", second, "--place", 1, "--device", "cpu")
    code, out, err = command("trace", translator.folder.path, TEXT, *options)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    name, value = max(found.parts.items(), key=lambda part: abs(part[1]))
    assert f"{name} " in out
    assert f"{value:+.3f}" in out
    code, out, err = command("trace", translator.folder.path, TEXT, *options, "--json")
    assert json.loads(out)["attribution"]["parts"] == pytest.approx(found.parts, abs=1e-5)


def test_the_map_is_that_of_python(command, translator):
    first, second = (one.text for one in ch.trace(translator, TEXT).candidates[0][:2])
    options = ("--patch-from", OTHER, "--by", "head", "--answer", second, "--other", first, "--device", "cpu")
    found = ch.patch(translator, TEXT, OTHER, by="head", answer=second, other=first, progress=False)
    code, out, err = command("trace", translator.folder.path, TEXT, *options, "--json")
    told = json.loads(out)["patched"]["recovered"]
    assert list(told) == list(found.recovered)
    for row, shares in found.recovered.items():
        assert told[row] == pytest.approx(shares.tolist(), abs=1e-4)
    code, out, err = command("trace", translator.folder.path, TEXT, *options)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert f"{found.best[0].row} at " in out


def test_an_answer_that_is_not_there_is_refused(command, translator):
    code, out, err = command(
        "trace", translator.folder.path, TEXT, "--attribute", "--answer", "no such", "--device", "cpu"
    )
    assert (code, out) == (1, "")
    assert "there is no answer 'no such'" in err
