"""/openapi.json: every address and what may be sent to it, made from the types of the messages."""

import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from starlette.routing import Route

from clearhead.serve.bodies import BODIES, Query

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
Schema = dict[str, Any]


def describe_routes(routes: Iterable[Route]) -> Schema:
    """Return the description of these routes, as OpenAPI 3.1."""
    named: dict[str, Schema] = {}
    paths: dict[str, Schema] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        at = [piece.strip("{}") for piece in path.split("/") if piece.startswith("{")]
        parameters = [{"in": "path", "name": name, "required": True, "schema": {"type": "string"}} for name in at]
        body = BODIES.get(path.removeprefix("/b"))
        answers = {"responses": {"200": {"description": "the answer"}, "4XX": {"description": "what is wrong"}}}
        if body is not None:
            content = {"application/json": {"schema": schema_of(body, named)}}
            operation = {"requestBody": {"required": True, "content": content}}
            paths[path] = {"post": operation | answers}
        else:
            if path.startswith(("/api/", "/b/api/")):
                hints = get_type_hints(Query).items()
                parameters += [{"in": "query", "name": name, "schema": schema_of(kind, named)} for name, kind in hints]
            paths[path] = {"get": {"parameters": parameters} | answers}
    info = {"title": "Clearhead", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": named}}


def schema_of(kind: Any, named: dict[str, Schema]) -> Schema:
    """Return the JSON schema of a type; messages are put into `named`, and referred to.

    >>> schema_of(int | list[str], {})
    {'anyOf': [{'type': 'integer'}, {'type': 'array', 'items': {'type': 'string'}}]}
    """
    if is_typeddict(kind):
        if kind.__name__ not in named:
            named[kind.__name__] = {}  # it may hold itself
            properties = {name: schema_of(inner, named) for name, inner in get_type_hints(kind).items()}
            required = [name for name in properties if name in kind.__required_keys__]
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
