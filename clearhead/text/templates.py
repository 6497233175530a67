"""Chat templates: a conversation as the one text that an imported model was trained to continue.

They are in Jinja, as they come with models: programs of strangers, run in Jinja's sandbox in a bounded process. They
are given plain JSON only. The sandbox keeps them from everything but their text, and the process from taking more time
or memory than it is given.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from clearhead.bounds import RENDERING, TEMPLATE_BYTES, call_bounded
from clearhead.errors import OptionError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment


def render(text: str, variables: Mapping[str, Any], *, where: str) -> str:
    """Return what a template makes of its variables; OptionError, which begins with `where`, where it cannot."""
    return call_bounded(render_here, {"text": text, "variables": variables}, RENDERING, where=where, error=OptionError)


def check_template(text: str, variables: Mapping[str, Any], *, where: str) -> None:
    """Raise OptionError for a template that is too long, is not Jinja, or passes its bounds with these variables."""
    if len(text) > TEMPLATE_BYTES:
        raise OptionError(f"{where}: a chat template of {len(text):,} characters; expected at most {TEMPLATE_BYTES:,}")
    call_bounded(check_here, {"text": text, "variables": variables}, RENDERING, where=where, error=OptionError)


def render_here(text: str, variables: Mapping[str, Any]) -> str:
    """Render in this process, which is a bounded one."""
    return compile_template(text).render(**variables)


def check_here(text: str, variables: Mapping[str, Any]) -> str:
    """Compile in this process, and render; a template may refuse these variables, but must end."""
    template = compile_template(text)
    try:
        return template.render(**variables)
    except MemoryError:
        raise
    except Exception:  # a template can raise whatever Python can
        return ""


@lru_cache(maxsize=8)
def compile_template(text: str) -> "Template":
    """Return a compiled template; those used last are kept, since compiling takes longer than rendering."""
    return environment().from_string(text)


def environment() -> "ImmutableSandboxedEnvironment":
    """Return Jinja's sandbox with the functions that chat templates use."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}` marks what a model has written, for training: here it is text like any other."""

        tags = frozenset(("generation",))  # pyright: ignore[reportAssignmentType] - it is only read

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class SafeNamespace(Namespace):
        """A namespace without attributes that begin with an underscore, through which a sandbox can be left."""

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                raise ValueError(f"{name!r} begins with an underscore, and may not be set")
            super().__setitem__(name, value)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": SafeNamespace,
    }
    return sandbox


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON; Jinja's own filter would escape it for a web page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> NoReturn:
    raise ValueError(str(message))


Message = Mapping[str, Any]
"""What one side said: `role` (system, user or assistant) and `content`."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template's text, and the special tokens that it can name (`bos_token` and others).

    >>> template = ChatTemplate("{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}\\n{% endfor %}")
    >>> template.render([{"role": "user", "content": "Who are you?"}])
    'user: Who are you?\\n'
    """

    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Message], *, reply: bool = True, tools: Sequence[Any] | None = None) -> str:
        """Return a conversation as text; `reply`: the text ends where the model's answer begins. `tools`: those that
        the model may call, as the template takes them.
        """
        where = "the chat template cannot be used with these messages"
        variables = self.variables(check_messages(messages), reply=reply) | {"tools": tools}
        return render(self.text, variables, where=where)

    def check(self, where: str) -> None:
        """Raise OptionError, beginning with `where`, for a text that is no template, or takes too long or too much."""
        check_template(self.text, self.variables([{"role": "user", "content": "Hello"}]), where=where)

    def variables(self, messages: list[dict[str, Any]], *, reply: bool = True) -> dict[str, Any]:
        """Return what a template can name."""
        common = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": reply}
        return {**self.tokens, **common}


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as plain JSON; OptionError if they are no conversation."""
    if not isinstance(messages, list | tuple) or not messages:
        example = '[{"role": "user", "content": "Hello"}]'
        raise OptionError(f"messages: expected a list such as {example}; came {messages!r:.80}")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise OptionError(f"messages: the {number}. has no role and content; came {message!r:.80}")
    try:
        return json.loads(json.dumps([dict(message) for message in messages]))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"messages: expected text, numbers and lists of them ({error})") from None
