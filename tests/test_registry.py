"""The registry: one function for our parts and a user's, names in files, refusals, and what is imported when."""

import importlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import clearhead as ch
from clearhead import registry
from clearhead.errors import OptionError, RunError
from clearhead.model import presets
from clearhead.model.feedforward import ReLU
from clearhead.model.norms import Norm
from clearhead.model.sizes import spec_from_json, spec_to_json
from clearhead.registry import Examples, find, import_parts, options, parse, register
from tests.registering import registry_restored, write_module

MARKED = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's own on Python's path, imported."""
    write_module(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with registry_restored("mine"):
        yield importlib.import_module("mine")


def with_weighting(part):
    spec = presets.tiny(vocabulary=20)
    block = spec.encoder.blocks[0]
    block = replace(block, attention=replace(block.attention, weighting=part))
    return replace(spec, encoder=replace(spec.encoder, blocks=(block,)))


def test_files_name_a_part_of_ours_and_a_users_own(mine):
    assert registry.CLASSES["Softmax"] is ch.weighting.Softmax
    assert registry.CLASSES["mine:TopK"] is mine.TopK
    spec = with_weighting(mine.TopK(count=2))
    written = json.loads(json.dumps(spec_to_json(spec)))
    assert written["encoder"]["blocks"][0]["attention"]["weighting"] == {"is": "mine:TopK", "count": 2}
    assert spec_from_json(written) == spec


def test_fields_of_a_users_own_are_checked_against_their_annotations(mine):
    written = spec_to_json(with_weighting(mine.TopK(count=2)))
    weighting = written["encoder"]["blocks"][0]["attention"]["weighting"]
    weighting["count"] = "two"
    with pytest.raises(RunError, match=r"weighting\.count: expected a whole number; came 'two'"):
        spec_from_json(written, where="model.json")
    weighting["count"] = 0
    with pytest.raises(RunError, match=r"weighting: count must be 1 or more; came 0"):
        spec_from_json(written, where="model.json")


def test_a_file_never_makes_a_module_be_imported(tmp_path, monkeypatch):
    write_module(tmp_path, "lurking", MARKED)
    monkeypatch.syspath_prepend(str(tmp_path))
    written = spec_to_json(with_weighting(ch.weighting.Softmax()))
    written["encoder"]["blocks"][0]["attention"]["weighting"] = {"is": "lurking:TopK"}
    with pytest.raises(RunError, match=r"uses lurking:TopK, a part of your own .*--parts lurking.*parts='lurking'"):
        spec_from_json(written, where="model.json")
    assert not (tmp_path / "imported").exists()
    assert "lurking" not in sys.modules
    with registry_restored("lurking"):
        import_parts("lurking")
    assert (tmp_path / "imported").exists()


def test_what_is_registered_is_among_the_examples_and_not_before(mine):
    assert ch.weighting.TABLE["mine:TopK"] == mine.TopK()
    assert list(ch.weighting.TABLE)[:2] == ["softmax", "warm softmax"]
    assert Examples("feature map")["elu"] == ch.weighting.Elu()
    assert "mine:Squared" not in Examples("feed-forward")  # its d_ff has no default


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"option": 3}, "option: expected a short name, a str; came 3"),
        ({"option": ""}, "option: expected a short name, a str; came ''"),
        ({"examples": {"softmax": 3}}, r"examples: expected parts by name, as {'mine': Softmax\(\)}; came"),
        ({"examples": {3: ch.weighting.Softmax()}}, "examples: expected parts by name"),
        ({"examples": [ch.weighting.Softmax()]}, "examples: expected parts by name"),
    ],
)
def test_what_cannot_be_registered_is_told_and_leaves_nothing_behind(options, said):
    before = [dict(table) for tables in (registry.OPTIONS, registry.EXAMPLES) for table in tables.values()]
    with pytest.raises(OptionError, match=said):
        ch.register(ch.weighting.Softmax, **options)
    assert [dict(table) for tables in (registry.OPTIONS, registry.EXAMPLES) for table in tables.values()] == before


def test_registering_twice_changes_nothing(mine):
    before = dict(registry.CLASSES)
    assert register(mine.TopK) is mine.TopK
    assert before == registry.CLASSES


def test_two_classes_of_one_name_are_told_with_their_places(mine):
    with pytest.raises(
        OptionError, match=r"two classes are called mine:TopK: one in .*mine\.py, line \d+, one in .*mine"
    ):
        importlib.reload(mine)


def test_an_import_that_failed_can_be_tried_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write_module(tmp_path, "later")
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + "\nnot_there\n", encoding="utf-8")
    with registry_restored("later"):
        with pytest.raises(OptionError, match=r"later cannot be imported: NameError: .*\(.*later\.py, line \d+\)"):
            import_parts("later")
        path.write_text(whole + "\n# repaired\n", encoding="utf-8")
        import_parts("later")
        assert registry.CLASSES["later:TopK"] is sys.modules["later"].TopK


def test_two_parts_of_one_short_name_are_told(mine):
    with pytest.raises(OptionError, match="two parts have the short name softmax"):
        register(mine.TopK, option="softmax")


@dataclass(frozen=True)
class Unfinished(Norm):
    pass


class Loose(ch.weighting.Weighting):
    def weigh(self, masked, allowed):
        return masked


@dataclass
class Thawed(ch.weighting.Softmax.__base__):
    def weigh(self, masked, allowed):
        return masked


class Inherits(ReLU.__base__):
    def build(self, d_model):
        raise NotImplementedError


def local_class():
    @dataclass(frozen=True)
    class Inner(ch.weighting.Weighting):
        def weigh(self, masked, allowed):
            return masked

    return Inner


def class_of_the_program():
    @dataclass(frozen=True)
    class Program(ch.weighting.Weighting):
        def weigh(self, masked, allowed):
            return masked

    Program.__module__, Program.__qualname__ = "__main__", "Program"
    return Program


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda: Path, "Path is no part: derive it from one of .*Similarity.*Weighting"),
        (lambda: Unfinished, "Unfinished cannot be registered: it does not define build"),
        (lambda: Loose, r"Loose in tests.test_registry cannot .*Put @dataclass\(frozen=True\) above"),
        (lambda: Thawed, "Thawed in .* it must be a frozen dataclass"),
        (lambda: Inherits, "Inherits in .* it must be a frozen dataclass"),
        (local_class, "Inner in .* a class inside a function cannot be imported. Move it to the top level"),
        (class_of_the_program, "Program .* defined in __main__, which no other program can import. Put the class"),
    ],
    ids=["no part", "abstract", "no dataclass", "not frozen", "only inherits", "local", "main"],
)
def test_what_could_not_be_read_again_is_refused(part, message):
    with registry_restored(), pytest.raises(OptionError, match=message):
        register(part())


@pytest.mark.parametrize(
    ("text", "kinds", "part"),
    [
        ("relu", ("feed-forward",), lambda mine: ReLU(8)),
        ("mine:TopK", ("weighting",), lambda mine: mine.TopK()),
        ("mine:TopK(count=2)", ("weighting",), lambda mine: mine.TopK(2)),
        ("mine:Warm(start=2)", ("similarity", "weighting"), lambda mine: mine.Warm(2.0)),
        ("mine:Squared", ("feed-forward",), lambda mine: mine.Squared(8)),
        ("mine:Squared(d_ff=4)", ("feed-forward",), lambda mine: mine.Squared(4)),
    ],
)
def test_a_part_by_the_text_of_an_option(text, kinds, part, mine):
    assert parse(text, *kinds).make(d_ff=8) == part(mine)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk", r"there is no 'topk'; there are softmax, argmax, .*, and parts of your own as module:Class"),
        ("mine:Best", r"'mine:Best' is not registered: import its module .*put @clearhead\.register above its class"),
        ("mine:Centred", "mine:Centred is a norm; expected a weighting"),
        ("mine:TopK(2)", r"expected mine:TopK\(field=value, …\), with plain values; came mine:TopK\(2\)"),
        ("mine:TopK(count=", "with plain values"),
        ("mine:TopK(count=__import__('os'))", "with plain values"),
        ("mine:TopK(count=2)(3)", "with plain values"),
        ("mine:TopK(size=2)", "mine:TopK has no field 'size'; it has count"),
        ("mine:TopK(count='two')", "mine:TopK: count: expected a whole number; came 'two'"),
        ("mine:TopK(count=0)", r"mine:TopK: ValueError: count must be 1 or more; came 0 \(.*mine\.py, line \d+\)"),
    ],
)
def test_a_text_that_names_no_part_is_told(text, message, mine):
    with pytest.raises(OptionError, match=message):
        parse(text, "weighting").make()


def test_a_field_without_default_must_be_given(mine):
    with pytest.raises(OptionError, match=r"mine:Squared has no default for d_ff: write mine:Squared\(d_ff=…\)"):
        parse("mine:Squared", "feed-forward").make()


def test_the_first_kind_wins_where_two_share_a_short_name():
    assert find("none", "arrangement", "averaging") is options("arrangement")["none"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent", None, r"there is no module absent in .* or on Python's path \(PYTHONPATH\)"),
        ("mine.py", None, r"expected the name of a module, as `import` takes it; came 'mine\.py': write mine"),
        ("../mine", None, "expected the name of a module"),
        ("broken", "x = 1\ny = (\n", r"broken cannot be imported: SyntaxError: .*\(.*broken\.py, line 2\)"),
        ("needs", "\nimport not_installed_here\n", r"needs cannot be imported: ModuleNotFoundError.*needs\.py, line 2"),
        ("leaves", "import sys\nsys.exit(3)\n", r"leaves cannot be imported: SystemExit: 3 \(.*leaves\.py, line 2\)"),
        (
            "wrong",
            "import clearhead as ch\n\n\n@ch.register\nclass A(ch.weighting.Softmax.__base__):\n    pass\n",
            r"wrong cannot be imported: A cannot be registered: it does not define weigh \(.*wrong\.py, line \d\)",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_in_one_line(name, text, message, tmp_path):
    if text is not None:
        write_module(tmp_path, name, text)
    before = list(sys.path)
    with registry_restored(name), pytest.raises(OptionError, match=message) as told:
        import_parts([name], folder=str(tmp_path))
    assert "\n" not in str(told.value)
    assert sys.path == before


def test_parts_are_modules_their_names_or_classes(tmp_path, mine):
    with registry_restored():
        del registry.CLASSES["mine:TopK"]
        import_parts(mine.TopK)
        import_parts([mine, "mine", "mine:TopK", mine.TopK])
        assert registry.CLASSES["mine:TopK"] is mine.TopK
    import_parts(None)
