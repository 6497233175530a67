"""/openapi.json: every address and what may be sent to it, made from the types of the messages."""

import dataclasses
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from starlette.requests import Request
from starlette.routing import Route

from clearhead.serve.bodies import BODIES

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
Schema = dict[str, Any]


class QuestionRoute(Route):
    """A route for a question of the explorer: `asks` is a dataclass whose fields are what may be sent."""

    def __init__(self, path: str, endpoint: Callable[[Request], Any], *, methods: list[str], asks: type) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.asks = asks


def describe_routes(routes: Iterable[Route]) -> Schema:
    """Return the description of these routes, as OpenAPI 3.1."""
    named: dict[str, Schema] = {}
    paths: dict[str, Schema] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        at = [piece.strip("{}") for piece in path.split("/") if piece.startswith("{")]
        parameters = [{"in": "path", "name": name, "required": True, "schema": {"type": "string"}} for name in at]
        asks = route.asks if isinstance(route, QuestionRoute) else None
        body = asks if asks is not None and "POST" in (route.methods or ()) else BODIES.get(path)
        answers = {"responses": {"200": {"description": "the answer"}, "4XX": {"description": "what is wrong"}}}
        if body is not None:
            content = {"application/json": {"schema": schema_of(body, named)}}
            operation = {"requestBody": {"required": True, "content": content}}
            paths[path] = {"post": operation | answers}
        else:
            asked = {} if asks is None else {name: kind for name, kind in fields_of(asks)[0].items() if name not in at}
            parameters += [{"in": "query", "name": name, "schema": schema_of(asked[name], named)} for name in asked]
            paths[path] = {"get": {"parameters": parameters} | answers}
    info = {"title": "Clearhead", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": named}}


def is_message(kind: Any) -> bool:
    return is_typeddict(kind) or dataclasses.is_dataclass(kind)


def fields_of(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a message with their types, and the names of those that must be there."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return hints, [name for name in hints if name in kind.__required_keys__]
    fields = dataclasses.fields(kind)
    required = [one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING]
    return {one.name: hints[one.name] for one in fields}, required


def schema_of(kind: Any, named: dict[str, Schema]) -> Schema:
    """Return the JSON schema of a type; messages are put into `named`, and referred to.

    >>> schema_of(int | list[str], {})
    {'anyOf': [{'type': 'integer'}, {'type': 'array', 'items': {'type': 'string'}}]}
    """
    if is_message(kind):
        if kind.__name__ not in named:
            named[kind.__name__] = {}  # it may hold itself
            fields, required = fields_of(kind)
            properties = {name: schema_of(inner, named) for name, inner in fields.items()}
            named[kind.__name__] = {"type": "object", "properties": properties, "required": required}
        return {"$ref": f"#/components/schemas/{kind.__name__}"}
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one, named) for one in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0], named)}
    if origin is tuple:
        items = [schema_of(one, named) for one in inner]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1], named)}
    return {"type": PLAIN[kind]} if kind in PLAIN else {}
