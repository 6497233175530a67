"""The table of questions, by name: what is found in the folder `questions`."""

import importlib
import inspect
import pkgutil
from typing import Any

from clearhead.serve import questions
from clearhead.serve.questions.question import Question, name_of


def find_questions() -> dict[str, type[Question[Any]]]:
    """Return the questions of the files of the folder by their names."""
    files = pkgutil.iter_modules(questions.__path__)
    modules = [importlib.import_module(f"{questions.__name__}.{found.name}") for found in files]
    kinds = [
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, Question)
        and kind.__module__ == module.__name__
        and not inspect.isabstract(kind)
    ]
    return {name_of(kind): kind for kind in kinds}


QUESTIONS = find_questions()
