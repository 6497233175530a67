"""A task of the user's own beside ours: found by its path, refused by name, and answered with neutral defaults."""

import pytest

from clearhead.errors import OptionError
from clearhead.model import presets
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks import TASKS, name_of, task_named
from clearhead.training.tasks.measures import Measure
from tests.registering import registry_restored

OWN = """
import clearhead as ch
from clearhead.training.tasks import Layout, Task

@ch.register
class Echo(Task):
    name = "echo"

    @staticmethod
    def layout(context):
        return Layout(texts=("text",), most=context - 1)

    @classmethod
    def default_recipe(cls, corpus, n_bytes, on_gpu):
        raise NotImplementedError

    def read(self, store, rows, random, *, filled):
        raise NotImplementedError

    def answer(self, model, texts):
        return [{"output": text} for text in texts]
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


def test_what_a_task_does_not_say_has_a_neutral_answer(echo):
    import echoing  # type: ignore[import-not-found]

    task = echoing.Echo(tokenizers={"text": Tokenizer.train(["abc"], "byte")}, context=8)
    assert (task.reads, task.count_tokens(["abc", "a"])) == (7, [3, 1])
    assert task.fields() == ("text",)
    assert task.usage() == ("echo 'a line of text' | clearhead answer {run}", "clearhead evaluate {run} --table TEST")
    assert task.trace_inputs("abc").pieces == {"encoder": ["<s>", "a", "b", "c"]}
    assert task.goal({"accuracy": 0.5}, 2.0) == 0.5
    assert task.goal({}, 2.0) == -2.0
    with pytest.raises(OptionError, match="to echo takes an encoder; the model is a Decoder"):
        task.fitted(presets.gpt2("tiny", vocabulary=9))
    with pytest.raises(OptionError, match="the text has 11 tokens, and the model was trained to read 8; shorten it"):
        task.trace_inputs("abcabcabca")
    with pytest.raises(OptionError, match="to echo writes nothing, so there is nothing to decode"):
        task.decoding({"encoder": [1]}, max_new=None, usual=9)


def test_the_best_checkpoint_has_least_of_a_score_that_is_an_error(echo):
    import echoing  # type: ignore[import-not-found]

    class Error(echoing.Echo):
        measures = (Measure("word_error", "word error %", 100, higher=False),)
        best_by = "word_error"

    assert Error(tokenizers={}, context=8).goal({"word_error": 0.25}, 2.0) == -0.25
