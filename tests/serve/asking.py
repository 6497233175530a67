"""Questions asked without HTTP, as an address or a body would have them."""

from clearhead.serve.params import Params
from clearhead.serve.question_table import QUESTIONS
from clearhead.serve.questions.question import read_question


def ask(explorer, name, asked=None, trace=None):
    """The answer to a question by its name; about a trace by its id."""
    about = {} if trace is None else {"trace": trace}
    return explorer.ask(read_question(QUESTIONS[name], Params({**(asked or {}), **about})))
