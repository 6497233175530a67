"""Chat templates: a conversation as the one text that an imported model was trained to continue.

A template is a program in Jinja that came with the model, so from a stranger: it is run in Jinja's sandbox, is given
plain JSON only, and its errors are reported as OptionError.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, final

from clearhead.errors import OptionError

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]
"""What one side said: `role` (system, user or assistant) and `content`."""


@final
@dataclass(frozen=True)
class ChatTemplate:
    """A template's text, and the special tokens that it can name (`bos_token` and others).

    >>> template = ChatTemplate("{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}\\n{% endfor %}")
    >>> template.render([{"role": "user", "content": "Who are you?"}])
    'user: Who are you?\\n'
    """

    text: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Message], *, reply: bool = True) -> str:
        """Return a conversation as text; `reply`: the text ends where the model's answer begins."""
        checked = check_messages(messages)
        try:
            template = environment().from_string(self.text)
            return template.render(
                **self.tokens, messages=checked, tools=None, documents=None, add_generation_prompt=reply
            )
        except MemoryError:
            raise
        except Exception as error:  # a template can raise whatever Python can
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise OptionError(f"the chat template cannot be used with these messages: {first[:300]}") from None


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages as plain JSON; OptionError where they are no conversation."""
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
                raise OptionError(f"{name!r} begins with an underscore, and may not be set")
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
    raise OptionError(str(message))
