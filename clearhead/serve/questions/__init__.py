"""Every question that the page can ask, one file each: a file that is put here is asked, routed and typed."""

import importlib
import inspect
import pkgutil
from typing import Any

from clearhead.serve.questions.question import Question, name_of


def find_questions() -> dict[str, type[Question[Any]]]:
    """Return the questions of the files of this folder by their names."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
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
