"""What the repository promises about itself: what is in its files, its public names, its versions."""

import ast
import itertools
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import clearhead
from benchmarks.source import Module, doubled_classes, read_modules
from tests import conftest, scheduling

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

PACKAGE_HOST = re.compile(
    r"""https?://\S+/simple\b
      | --(extra-)?index-url
      | "resolved":\s*"https?://
      | registry\s*=\s*"https?://
      | files\.pythonhosted\.org""",
    re.VERBOSE,
)
PICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def machine_path(*folders: Path) -> re.Pattern[str]:
    """Finds a path under one of these folders, but not where its name is the end of a longer path."""
    names = {str(folder) for folder in folders} - {"/", tempfile.gettempdir()}
    return re.compile("|".join(rf"(?<![\w.\-/]){re.escape(name)}(?=[/\s\"'`)]|$)" for name in sorted(names)))


def unsafe_names(source: str) -> set[str]:
    """What in this source reads or writes pickles, torch's own files included, but by its reader of weights alone."""
    found, tree = set(), ast.parse(source)
    weights_alone = [
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and any(one.arg == "weights_only" and getattr(one.value, "value", None) is True for one in node.keywords)
    ]
    for node in ast.walk(tree):
        if node in weights_alone:
            continue
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names if alias.name.split(".")[0] in PICKLES}
            case ast.ImportFrom(module=str(module), names=names):
                used = {f"{module}.{alias.name}" for alias in names}
                found |= {module} if module.split(".")[0] in PICKLES else used & {"torch.load", "torch.save"}
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as verb):
                found.add(f"torch.{verb}")
            case ast.keyword(arg="allow_pickle"):
                found.add("allow_pickle")
    return found


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """What is committed, and what would be: tracked files and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    present = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    assert ROOT / "pyproject.toml" in present
    return present


def lines_with(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.slow
def test_no_file_names_a_package_host(files):
    assert lines_with(PACKAGE_HOST, files) == []


@pytest.mark.slow
def test_no_file_names_a_path_of_this_machine(files):
    assert lines_with(machine_path(ROOT, ROOT.parent, Path.home()), files) == []


# Written in two halves, so that this file is not found by its own search.
@pytest.mark.parametrize(
    "line",
    [
        "https:" + "//packages.example/simple",
        "--index" + "-url somewhere",
        "--extra-index" + "-url=somewhere",
        '"resolved"' + ': "https:' + '//packages.example/a.tgz"',
        'source = { registry = "https:' + '//packages.example" }',
    ],
)
def test_a_package_host_would_be_found(line):
    assert PACKAGE_HOST.search(line)


@pytest.mark.parametrize("line", ["https://example.org/simple_models", "a simple index", "https://example.org/guide"])
def test_an_ordinary_address_is_not_a_package_host(line):
    assert not PACKAGE_HOST.search(line)


def test_a_path_of_a_machine_is_told_from_the_end_of_another():
    pattern = machine_path(Path("/srv/people"), Path("/"))
    assert pattern.search("open('/srv/people/notes.txt')")
    assert pattern.search("cd /srv/people")
    assert not pattern.search("docs/srv/people/notes.txt")
    assert not pattern.search("/srv/peoples/notes.txt")


@pytest.mark.slow
def test_the_package_never_pickles():
    sources = sorted((ROOT / "clearhead").rglob("*.py"))
    assert ROOT / "clearhead/__init__.py" in sources
    unsafe = {str(path.relative_to(ROOT)): unsafe_names(path.read_text(encoding="utf-8")) for path in sources}
    assert {name: found for name, found in unsafe.items() if found} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle as p", {"pickle"}),
        ("from pickle import loads", {"pickle"}),
        ("import torch\ntorch.load(path, weights_only=True)", set()),
        ("import torch\ntorch.load(path, weights_only=False)", {"torch.load"}),
        ("import torch\ntorch.load(path, weights_only=safe)", {"torch.load"}),
        ("import torch\ntorch.load(path)", {"torch.load"}),
        ("import torch\nwrite = torch.save", {"torch.save"}),
        ("from torch import load, nn", {"torch.load"}),
        ("numpy.load(path, allow_pickle=True)", {"allow_pickle"}),
        ("from safetensors.torch import load, save\nimport json\njson.load(file)", set()),
    ],
)
def test_a_pickle_would_be_found(source, found):
    assert unsafe_names(source) == found


def test_public_names_are_sorted_and_exist():
    names = clearhead.__all__
    assert names
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(clearhead, name)] == []


ROOT_ENTRIES = (
    *(
        ".ci",
        ".github",
        ".gitignore",
        "CHANGELOG.md",
        "CITATION.cff",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "LICENSE",
    ),
    *(
        "Makefile",
        "README.md",
        "SECURITY.md",
        "benchmarks",
        "clearhead",
        "constraints.txt",
        "docs",
        "estimator",
        "notebooks",
    ),
    *("paper.bib", "paper.md", "pyproject.toml", "release", "site", "tests", "web"),
)


def test_nothing_is_left_in_the_root(files):
    """A test or a trial that writes where it stands leaves a file here, and the next commit takes it along."""
    assert sorted({path.relative_to(ROOT).parts[0] for path in files}) == sorted(ROOT_ENTRIES)


def test_only_packages_and_public_modules_list_their_names():
    """Elsewhere `__all__` was one more list to keep true, and 705 of its names were imported by nobody."""
    homes = [clearhead, *(getattr(clearhead, name) for name in clearhead.SUBMODULES)]
    named = [getattr(home, name) for home in homes for name in home.__all__]
    public = {Path(module.__file__ or "") for module in named if isinstance(module, ModuleType)}
    sources = [path for path in (ROOT / "clearhead").rglob("*.py") if path.name != "__init__.py"]
    listing = {path for path in sources if re.search("^__all__", path.read_text(encoding="utf-8"), re.MULTILINE)}
    assert listing <= public


DERIVED_FROM = set(
    re.findall(
        r"\w+",
        """
    AdamW AnswerBody CTranslate2Peer ClassifyBody CodeRepr CosineForm Deadlines DecodingModule DotForm Explained
    Generate Gradients Listener Logs Mixed Network OfPaths OneLabel Part Position Prefill RunBody ScoreIndex
    Sequence Service Session Showing StackModel StackSpec SteppedLinear SumsCache Tapped Task Wiring WritingBody
    """,
    )
)
"""Classes without an abstract method that others derive from; that the others are final, nobody has to write."""


def subclassed(modules):
    """Yield the classes of the package that have subclasses in it, though nothing in them is abstract."""
    defined = {
        node.name: node for module in modules.values() for node in module.walk() if isinstance(node, ast.ClassDef)
    }
    bases = {name: [ast.unparse(base).partition("[")[0] for base in node.bases] for name, node in defined.items()}
    for name in sorted({base for named in bases.values() for base in named} & defined.keys()):
        methods = (method for method in defined[name].body if isinstance(method, ast.FunctionDef))
        abstract = any("abstractmethod" in map(ast.unparse, method.decorator_list) for method in methods)
        if not abstract and not {"ABC", "Protocol", "TypedDict"} & set(bases[name]) and not name.endswith("Error"):
            yield name


def test_a_class_is_abstract_or_final_but_for_a_few():
    assert set(subclassed(read_modules(ROOT))) == DERIVED_FROM


def test_a_class_that_is_derived_from_would_be_found():
    text = "class Cache: ...\nclass Larger(Cache): ...\nclass Open(ABC): ...\nclass Closed(Open): ...\n"
    assert [*subclassed({"one": Module("one.py", text, ast.parse(text))})] == ["Cache"]


def test_every_class_has_a_name_of_its_own():
    """A name that two modules define says nothing in a message, a trace of the stack or a search."""
    assert doubled_classes(read_modules(ROOT)) == {}


def test_contributing_maps_every_folder_of_the_package(files):
    package = ROOT / "clearhead"
    inside = [path.relative_to(package) for path in files if path.is_relative_to(package)]
    folders = {path.parts[0] for path in inside if len(path.parts) > 1}
    assert "attention" in folders
    _, _, section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Map of files\n")
    assert {folder for folder in folders if not re.search(rf"(?<!\w){folder}/", section)} == set()


def test_the_version_is_in_the_changelog_or_to_come():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(.+?)\](?: - \d{4}-\d{2}-\d{2})?$", changelog, re.MULTILINE)
    assert {PYPROJECT["project"]["version"], "Unreleased"} & set(releases)


def test_what_is_unreleased_can_be_read_by_a_user():
    """It had 12,700 words, most of them about work in the house. What is not for users stands in commits."""
    _, _, after = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## [Unreleased]\n")
    assert len(after.partition("\n## [")[0].split()) < 4000


def test_the_installed_version_is_the_one_in_pyproject():
    assert version("clearhead") == PYPROJECT["project"]["version"]


def test_every_dependency_is_pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    project = PYPROJECT["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    assert {re.split(r"[<>=~!]", name)[0] for name in wanted} <= {pin.split("==")[0] for pin in pins}


def test_shapes_are_checked_unless_a_session_says_otherwise(request):
    """`make test` runs every test without the hook, and the first case of each quick one with it."""
    hook = "--jaxtyping-packages=clearhead,beartype.beartype"
    assert hook in PYPROJECT["tool"]["pytest"]["ini_options"]["addopts"]
    found = [type(finder).__module__ for finder in sys.meta_path]
    checked = any(name.startswith("jaxtyping") for name in found)
    assert checked == bool(request.config.getoption("jaxtyping_packages"))


def modules_without_a_test_of_their_own() -> set[str]:
    """Modules of the package, by path, for which there is no test file of the same path, in tests or tests/plain.

    The questions of the page have a row each in tests/serve/questions/test_python.py, which sees to it itself.
    """
    modules = [path.relative_to(ROOT / "clearhead") for path in (ROOT / "clearhead").rglob("*.py")]
    modules = [path for path in modules if str(path.parent) != "serve/questions"]
    named = [path for path in modules if not path.name.startswith("__")]
    return {
        str(path)
        for path in named
        if not any((ROOT / "tests" / home / path.parent / f"test_{path.name}").exists() for home in ("", "plain"))
    }


def test_tests_mirror_modules_by_path():
    """A module is tested in the file of its path, but for those of this list, which only gets shorter."""
    listed = set((ROOT / "tests/without_mirror.txt").read_text(encoding="utf-8").split())
    assert sorted(modules_without_a_test_of_their_own() - listed) == [], "give it a test file of the same path"
    assert sorted(listed - modules_without_a_test_of_their_own()) == [], "it has one now: take it off the list"


def test_files_that_the_test_infrastructure_names_exist():
    """Tests are moved, and a name that is left behind here means nothing and is never noticed."""
    named = [f"tests/{name}" for name in (*conftest.OF_SHAPES, *conftest.REPEATS_SHAPES)]
    named += [*scheduling.BY_TEST, *scheduling.FEW_AND_LONG, *itertools.chain(*scheduling.TOGETHER.values())]
    assert [name for name in named if not [*ROOT.glob(f"{name}*")]] == []
