"""Docstrings of public names: arguments, what comes back, errors, and an example that some test runs."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import clearhead as ch
from tests.test_public import GUIDE, page_text

PARTS = [ch, *(getattr(ch, name) for name in ch.__all__ if isinstance(getattr(ch, name), ModuleType))]
NAMED = {  # a name that several modules have is looked at once
    id(value): (f"{module.__name__}.{name}", value)
    for module in PARTS
    for name, value in ((name, getattr(module, name)) for name in module.__all__)
    if callable(value) and not isinstance(value, ModuleType)
}
PUBLIC = sorted(NAMED.values(), key=lambda pair: pair[0])
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n((?:    .*\n?|\n)+)", re.MULTILINE)
IN_GUIDE = "\n".join(code for page in GUIDE for code in page_text(page)[1])


def failing(test: Callable[[Any], object]) -> dict[str, object]:
    """Return what a test finds wrong, by public name."""
    return {name: found for name, value in PUBLIC if (found := test(value))}


def sections(value: Any) -> dict[str, str]:
    return dict(SECTION.findall(inspect.getdoc(value) or ""))


def described(value: Any) -> set[str]:
    """Return the names that the docstring describes, and the fields of a class with a docstring of their own."""
    said = sections(value)
    lines = said.get("Args", "") + said.get("Attributes", "")
    names = set(re.findall(r"^    (\w+): \S", lines, re.MULTILINE))
    if inspect.isclass(value):
        body = syntax_of(value).body
        for field, doc in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                names.add(ast.unparse(field.target))
    return names


def syntax_of(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def parameters(value: Any) -> set[str]:
    """Return what a call takes; an error takes a message, and of an abstract class nothing is made."""
    if inspect.isclass(value) and (issubclass(value, Exception) and "__init__" not in vars(value)):
        return set()
    found = inspect.signature(value).parameters
    return set() if set(found) == {"args", "kwargs"} else set(found)


def raised(value: Any) -> Iterator[str]:
    """Yield the errors that a function raises itself, or a class when one is made."""
    tree = syntax_of(value)
    makers = ("__init__", "__post_init__")
    bodies = [one for one in tree.body if getattr(one, "name", "") in makers] if inspect.isclass(value) else [tree]
    for node in (node for body in bodies for node in ast.walk(body)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield ast.unparse(node.exc.func)


def undescribed(value: Any) -> set[str]:
    return parameters(value) - described(value)


def gone(value: Any) -> set[str]:
    return set(re.findall(r"^    (\w+): \S", sections(value).get("Args", ""), re.MULTILINE)) - parameters(value)


def without_returns(value: Any) -> bool:
    if inspect.isclass(value) or inspect.isgeneratorfunction(inspect.unwrap(value)):
        return False
    return inspect.signature(value).return_annotation is not None and "Returns" not in sections(value)


def unnamed_errors(value: Any) -> set[str]:
    """Return errors that are raised and not named, and names that are no errors."""
    named = set(re.findall(r"^    (\w+): ", sections(value).get("Raises", ""), re.MULTILINE))
    return (set(raised(value)) - named) | {name for name in named if not hasattr(ch.errors, name)}


def without_example(value: Any) -> bool:
    return ">>>" not in (inspect.getdoc(value) or "") and not re.search(rf"(?<!\w){value.__name__}\b", IN_GUIDE)


@pytest.mark.slow
def test_every_argument_is_described():
    assert failing(undescribed) == {}


def test_no_argument_is_described_that_is_gone():
    assert failing(gone) == {}


def test_what_comes_back_is_described():
    assert failing(without_returns) == {}


@pytest.mark.slow
def test_errors_that_are_raised_are_named():
    assert failing(unnamed_errors) == {}


def test_there_is_an_example_that_a_test_runs():
    assert failing(without_example) == {}


def test_a_docstring_that_says_too_little_or_too_much_is_noticed():
    def half_said(one: int, other: int) -> int:
        """Return something.

        Args:
            one: A number.
            gone: Not there.
        """
        raise ch.errors.OptionError("never")

    assert undescribed(half_said) == {"other"}
    assert gone(half_said) == {"gone"}
    assert without_returns(half_said)
    assert unnamed_errors(half_said) == {"ch.errors.OptionError"}
    assert without_example(half_said)


ELSEWHERE = {"vmap", "create_block_mask", "apply_greedy", "seccomp"}
"""Names of torch's, the system's and another library's that docstrings name."""
BACKTICKS = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?`(?!`)")


def words_of(tree: ast.AST) -> Iterator[str]:
    """Yield every name of a module, and the words of its strings but for docstrings."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield from re.findall(r"\w+", node.value)
        for field in ("id", "attr", "arg", "name", "module"):
            yield from re.findall(r"\w+", str(getattr(node, field, "")))


def missing_names(sources: dict[str, str]) -> list[str]:
    """Return the names in backticks in docstrings of these modules that none of them has."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    known = ELSEWHERE.union(*(words_of(tree) for tree in trees.values()), *(path.split("/") for path in trees))
    texts = ((path, node.value.value) for path, tree in trees.items() for node in ast.walk(tree) if is_text(node))
    found = ((path, name) for path, text in texts for name in BACKTICKS.findall(text))
    return [f"{path}: {name}" for path, name in found if name.rpartition(".")[2] not in known]


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_names_in_backticks_exist():
    home = Path(ch.__file__).parent
    sources = {str(path.relative_to(home).with_suffix("")): path.read_text("utf-8") for path in home.rglob("*.py")}
    assert missing_names(sources) == []
    assert missing_names({"a": 'def f(x):\n    """Return `x` and `gone`, by `a.f`."""'}) == ["a: gone"]
