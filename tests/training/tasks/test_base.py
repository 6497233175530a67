"""A task of the user's own beside ours: found by its path, refused by name, made of three parts."""

import itertools

import pytest

from clearhead.errors import OptionError
from clearhead.training.tasks import TASKS, Task, name_of, task_named
from clearhead.training.tasks.answering import Answering
from clearhead.training.tasks.base import Showing
from clearhead.training.tasks.learning import Learning
from tests.registering import registry_restored
from tests.training.tasks.echo import echo_task

OWN = """
import clearhead as ch
from tests.training.tasks import echo

@ch.register
class Echo(echo.Echo):
    pass
"""


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """A module of the user's own, not imported yet."""
    (tmp_path / "echoing.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with registry_restored():
        yield "echoing:Echo"


def test_our_tasks_are_called_by_their_verbs():
    assert list(TASKS) == ["translate", "generate", "fill", "classify", "classify-pairs", "label", "tag"]
    assert {name: name_of(task_named(name)) for name in TASKS} == {name: name for name in TASKS}
    assert all(task.name == name for name, task in TASKS.items())
    assert all(task.verb in (name.removesuffix("-pairs"), "answer") for name, task in TASKS.items())


def test_a_task_is_found_by_its_path_once_its_module_is_imported(echo):
    with pytest.raises(OptionError, match="task: 'echoing:Echo' is not registered: import its module"):
        task_named(echo)
    import echoing  # type: ignore[import-not-found]

    assert task_named(echo) is echoing.Echo
    assert name_of(echoing.Echo) == echo


def test_another_part_is_no_task():
    with pytest.raises(OptionError, match="task: there is no 'Softmax'; there are translate, generate, fill, classify"):
        task_named("Softmax")


def test_a_task_has_three_parts_and_no_part_has_what_another_has():
    parts = [Learning, Answering, Showing]
    assert [part for part in Task.__mro__ if part in parts] == parts
    said = [{name for name in vars(part) if not name.startswith("_")} for part in parts]
    assert all(len(names) <= 20 for names in said)
    assert not any(one & other for one, other in itertools.combinations(said, 2))


def test_commands_to_try_with_a_run():
    assert echo_task().usage() == (
        "echo 'a line of text' | clearhead answer {run}",
        "clearhead evaluate {run} --table TEST",
    )


def test_other_programs_know_a_task_as_itself_unless_it_says_otherwise():
    task = echo_task()
    assert task.exported() is task


def test_a_text_is_traced_with_its_start_token():
    assert echo_task().trace_inputs("abc").pieces == {"encoder": ["<s>", "a", "b", "c"]}
    with pytest.raises(OptionError, match="the text has 11 tokens, and the model was trained to read 8; shorten it"):
        echo_task().trace_inputs("abcabcabca")


def test_a_text_in_code_is_a_string():
    assert echo_task().example_code("it's") == repr("it's")
