"""A package of an extra that is not there: said with the command that installs it, and nothing else stops."""

import sys

import pytest

from clearhead.cli import run
from clearhead.errors import OptionError
from clearhead.extras import check_extra, has_package
from clearhead.plots.curves import draw_curves


@pytest.fixture
def without(monkeypatch):
    """Hides a package from this process."""
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


def test_a_package_that_is_there_is_found():
    assert has_package("torch")
    check_extra("torch", extra="none", what="This")


def test_one_that_is_missing_is_named_with_its_command(without):
    without("matplotlib")
    assert not has_package("matplotlib")
    with pytest.raises(OptionError, match=r"A plot needs the package matplotlib, .*: pip install 'clearhead\[plots\]'"):
        check_extra("matplotlib", extra="plots", what="A plot")


def test_a_plot_without_matplotlib_says_which_extra_it_takes(without, tmp_path):
    without("matplotlib")
    with pytest.raises(OptionError, match=r"clearhead\[plots\]"):
        draw_curves([{"step": 1, "loss": 1.0}], tmp_path / "curves.svg")
    assert list(tmp_path.iterdir()) == []


def test_the_demo_without_num2words_touches_nothing(without, tmp_path, capsys):
    without("num2words")
    assert run(["demo", "--folder", str(tmp_path / "demo")]) == 1
    assert "pip install 'clearhead[demo]'" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
