"""Tools of a chat: what a request offers goes into the chat template, and calls are read from what the model wrote.

A template says in its own words how a tool is called. What is read here is the form that most have: JSON with a name
and arguments between <tool_call> and </tool_call>.
"""

import json
import re
from typing import Any

from clearhead.serve.errors import ApiError
from clearhead.serve.params import Params
from clearhead.text.templates import ChatTemplate

CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
MOST_TOOLS = 128


def read_tools(params: Params, template: ChatTemplate) -> list[Any] | None:
    """Return the tools that a request offers; ApiError where the template has no place for them."""
    tools = params.values.get("tools") or None
    choice = params.values.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise ApiError(400, "tool_choice: the model chooses; say auto or none", param="tool_choice")
    if tools is None or choice == "none":
        return None
    listed = isinstance(tools, list) and len(tools) <= MOST_TOOLS
    named = listed and all(isinstance(tool, dict) and isinstance(tool.get("function"), dict) for tool in tools)
    if not named:
        raise params.value_error("tools", f"expected up to {MOST_TOOLS} objects with a function", tools)
    if "<tool_call>" not in template.text or "tools" not in template.text:
        message = "tools: the chat template of this run does not offer tools in a form that can be read; leave them out"
        raise ApiError(400, message, param="tools", code="unsupported_parameter")
    if params.flag("stream"):
        raise ApiError(400, "tools: calls are read from the whole reply; leave out stream", param="tools")
    return tools


def read_calls(text: str, identity: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text without its tool calls, and the calls in OpenAI's form; what is no call stays text.

    >>> read_calls('So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "x")
    ('So: ', [{'id': 'call_x_0', 'type': 'function', 'function': {'name': 'add', 'arguments': '{"a": 1}'}}])
    """
    calls: list[dict[str, Any]] = []

    def read(match: re.Match[str]) -> str:
        try:
            call = json.loads(match[1])
            function = {"name": str(call["name"]), "arguments": json.dumps(call.get("arguments", {}))}
        except (ValueError, KeyError, RecursionError):
            return match[0]
        calls.append({"id": f"call_{identity}_{len(calls)}", "type": "function", "function": function})
        return ""

    return CALL.sub(read, text), calls
