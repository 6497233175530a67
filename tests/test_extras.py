"""A package of an extra that is not there: said with the command that installs it, and nothing else stops."""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from clearhead.cli import run
from clearhead.errors import OptionError
from clearhead.extras import check_extra, has_package, how_to_install, import_peer, peer_version
from clearhead.plots.curves import draw_curves

ROOT = Path(__file__).parents[1]


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
    with pytest.raises(OptionError, match=r"A plot needs the package matplotlib, .*: pip install 'matplotlib>=3\.10'"):
        check_extra("matplotlib", extra="plots", what="A plot")


def test_a_plot_without_matplotlib_says_which_extra_it_takes(without, tmp_path):
    without("matplotlib")
    with pytest.raises(OptionError, match="pip install 'matplotlib>="):
        draw_curves([{"step": 1, "loss": 1.0}], tmp_path / "curves.svg")
    assert list(tmp_path.iterdir()) == []


def test_the_demo_without_num2words_touches_nothing(without, tmp_path, capsys):
    without("num2words")
    assert run(["demo", "--output", str(tmp_path / "demo")]) == 1
    assert "pip install 'matplotlib>=3.10' 'num2words>=0.5.14'" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_the_command_names_packages_and_never_asks_an_index_for_our_own_name():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra, packages in extras.items():
        names = [package.partition(";")[0].strip() for package in packages]
        assert how_to_install(extra) == " ".join(["pip install", *(f"'{name}'" for name in names)])


def test_in_a_clone_that_was_never_installed_it_is_the_clones(monkeypatch):
    def missing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("clearhead.extras.requires", missing)
    assert how_to_install("plots") == "pip install '.[plots]', in the clone"


def test_a_missing_package_is_named_with_the_way_to_install_it():
    with pytest.raises(OptionError, match=r"needs the package nowhere_at_all .*pip install 'ctranslate2>=\S+ 'gguf"):
        import_peer("nowhere_at_all.inside")


def test_a_package_is_told_with_its_version():
    assert peer_version("gguf").startswith("gguf 0.")
