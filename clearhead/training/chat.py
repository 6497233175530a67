"""Chat templates: a conversation as the one text that an imported model was trained to continue."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from clearhead.errors import OptionError
from clearhead.text import templates

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
        where = "the chat template cannot be used with these messages"
        return templates.render(self.text, self.variables(check_messages(messages), reply=reply), where=where)

    def check(self, where: str) -> None:
        """Raise OptionError, beginning with `where`, for a text that is no template, or takes too long or too much."""
        templates.check_template(self.text, self.variables([{"role": "user", "content": "Hello"}]), where=where)

    def variables(self, messages: list[dict[str, Any]], *, reply: bool = True) -> dict[str, Any]:
        """Return what a template can name."""
        common = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": reply}
        return {**self.tokens, **common}


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
