"""Requests made from a server's own /openapi.json: every field of every route, with values of its type and odd ones."""

import json
import random
import string
from urllib.parse import quote

HUGE = "9" * 400
ODD = (
    HUGE, f"-{HUGE}", f"{HUGE}.5", "1e400", "-1e400", "1e308", "5e-324", "-0.0", "-1", "0", "1", "2.5", "4294967296",
    "9223372036854775808", "NaN", "true", "null", '""', '" "', r'"\ud800"', r'"\u0000"', '"ä\u2028😀"', f'"{HUGE}"',
    "[]", "[[]]", "[null]", "{}", '{"a": 1}', f"[{HUGE}]", "[" * 500 + "]" * 500, '{"a":' * 200 + "1" + "}" * 200,
    '"' + "x" * 5000 + '"',
)  # fmt: skip
"""Values as they stand in a body: json.dumps could not write some of them."""
TEXTS = ("eins <mask>", "the cat", "a", "")
SCHEMAS = (
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}, {"type": "objekt"},
    {"type": "string", "minLength": 10**9}, {"type": "array", "minItems": 10**8}, {"$ref": "file:///etc/passwd"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, {"type": "number", "multipleOf": 1e-300},
    {"enum": ["x" * i for i in range(300)]}, {"type": "string", "pattern": "((a{1000}){1000}){1000}"}, {"allOf": [[]]},
)  # fmt: skip
"""Grammars of answers: right ones, wrong ones, and some that would take memory and time."""
KNOWN = {
    "input": TEXTS, "prompt": TEXTS, "source": TEXTS, "text": TEXTS, "texts": (["eins zwei"],), "word": ("eins",),
    "messages": ([{"role": "user", "content": "the"}],), "stop": (".", ["a", "b"]), "target": ("12", "1"),
    "beam": (1, 2), "n_best": (1, 2), "n": (1, 2), "max_tokens": (1, 4), "max_new": (2,), "candidates": (3,),
    "shown": (3,), "step": ("weight", "score", 60), "site": ("encoder.0.attention", "decoder.0.cross"), "head": ("0",),
    "at": ("encoder.0.attention",), "side": ("encoder", "decoder"), "table": ("encoder", "decoder"), "role": ("query",),
    "query": (0, 1), "key": (0, 1), "token": (0, 1), "level": (0, 1), "row": (0,), "column": (0,), "unit": (0, 3),
    "box": ("encoder.0.attention", "decoder.output"), "name": ("decoder.embedding.out",), "places": ("0,1",),
    "temperature": (0.0, 1.0), "stream": (False, True), "attention": (True, {"heads": [0]}),
    "regex": ("[a-z]+", "(a|b)*a(a|b){22}", "(", "((a{1000}){1000}){1000}", "(a?){5000}a{5000}", "(.*a){12}.{12}"),
    "response_format": (
        {"type": "json_object"}, *({"type": "json_schema", "json_schema": {"schema": one}} for one in SCHEMAS)
    ),
    "index": (0, 1), "question": ("run", "curves"), "asked": ({},), "repeats": (0, 2),
}  # fmt: skip
"""Values of names that would otherwise hardly ever be right."""


def as_object(fields):
    """An object of values that are JSON text already."""
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields.items()) + "}"


class Maker:
    """Draws requests by a schema; `known` has values for the names that would otherwise hardly ever be right."""

    def __init__(self, schema, seed, known, models):
        self.schema, self.draw, self.known, self.models = schema, random.Random(seed), known, models

    def value(self, schema):
        """A value of this schema, as JSON text."""
        draw = self.draw
        if "$ref" in schema:
            return self.object(self.schema["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
        if "anyOf" in schema:
            return self.value(draw.choice(schema["anyOf"]))
        if "enum" in schema:
            return json.dumps(draw.choice(schema["enum"]))
        match schema.get("type"):
            case "array":
                items = schema.get("prefixItems") or [schema["items"]] * draw.randrange(4)
                return f"[{', '.join(self.value(one) for one in items)}]"
            case "object":
                inner = schema.get("additionalProperties", {})
                return as_object({name: self.value(inner) for name in ("1", "b")[: draw.randrange(3)]})
            case "string":
                return json.dumps("".join(draw.choices(string.printable, k=draw.randrange(12))))
            case "integer":
                return str(draw.choice((0, 1, 2, 3, 17, draw.randrange(-(2**70), 2**70))))
            case "number":
                return repr(draw.choice((0.0, 0.5, 1.0, -1.0, draw.uniform(-1e9, 1e9))))
            case "boolean":
                return draw.choice(("true", "false"))
        return draw.choice(ODD)

    def field(self, name, schema):
        """A value of a field: a good one, one of its type, or an odd one."""
        kind = self.draw.random()
        if kind < 0.6 and name in self.known:
            return json.dumps(self.draw.choice(self.known[name]))
        return self.value(schema) if kind < 0.85 else self.draw.choice(ODD)

    def object(self, schema):
        names = [name for name in schema["properties"] if name in schema["required"] or self.draw.random() < 0.25]
        return as_object({name: self.field(name, schema["properties"][name]) for name in names})

    def good_but(self, path, schema, name, odd):
        """A body that is answered, but for one value."""
        fields = {one: json.dumps(self.known[one][0]) for one in schema["required"]}
        return as_object(
            fields | ({"model": json.dumps(self.models[path])} if path in self.models else {}) | {name: odd}
        )

    def requests(self, repeats):
        """Yield method, path and body: for every route, each field by itself is huge and odd, and some together."""
        for path, operations in self.schema["paths"].items():
            for method, operation in operations.items():
                for name in self.fields(operation):
                    for odd in (HUGE, *self.draw.choices(ODD, k=repeats)):
                        yield method.upper(), *self.request(path, operation, name, odd)
                for _ in range(2 * repeats):
                    yield method.upper(), *self.request(path, operation)

    def any_request(self):
        """Draw a method, path and body of one route: with one value of its own in a good body, or with drawn ones."""
        draw = self.draw
        path, operations = draw.choice([*self.schema["paths"].items()])
        method, operation = draw.choice([*operations.items()])
        forced = draw.choice(self.fields(operation) or [None]) if draw.random() < 0.5 else None
        known = [json.dumps(one) for one in self.known.get(forced, ())]
        return method.upper(), *self.request(path, operation, forced, draw.choice((*ODD, *known * 8)))

    def fields(self, operation):
        if "requestBody" in operation:
            return [*self.body_schema(operation)["properties"]]
        return [one["name"] for one in operation.get("parameters", ())]

    def body_schema(self, operation):
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        return self.schema["components"]["schemas"][reference.rsplit("/", 1)[1]]

    def request(self, path, operation, forced=None, odd=""):
        if "requestBody" in operation:
            schema = self.body_schema(operation)
            return path, (self.good_but(path, schema, forced, odd) if forced else self.object(schema)).encode()
        query = []
        for one in operation.get("parameters", ()):
            name = one["name"]
            if one["in"] == "query" and name != forced and self.draw.random() < 0.6:
                continue
            text = odd[:2000] if name == forced else self.field(name, one["schema"])
            text = quote(text.strip('"').encode(errors="replace"), safe="")
            if one["in"] == "path":
                path = path.replace(f"{{{name}}}", text or "x")
            else:
                query.append(f"{name}={text}")
        return f"{path}?{'&'.join(query)}" if query else path, None
