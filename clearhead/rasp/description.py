"""A compiled RASP program in words: its listing, and which operation each head and feed-forward network carries out.

>>> from clearhead.rasp import PROGRAMS
>>> plan = PROGRAMS["reverse"].plan()
>>> print("\\n".join(list_program(plan)))
length = selector_width(select(tokens, tokens, any key))
opposite = map(length, indices)
reverse = aggregate(select(indices, opposite, key = query), tokens)
>>> describe_layers(plan)[-1]["heads"][0]["words"]
'select(indices of all, opposite, key = query), then aggregate(tokens) → reverse'
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from clearhead.rasp import language
from clearhead.rasp.compiler import ProgramPlan
from clearhead.rasp.operations import HeadCondition, HeadOperation, HiddenUnit
from clearhead.rasp.scheduling import Level
from clearhead.rasp.spaces import HERE, ONE, SINK, Space
from clearhead.rasp.values import Possible, holds, plain

RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "any key": lambda key, query: True,
    "key = query": lambda key, query: key == query,
    "key < query": lambda key, query: key < query,
    "key ≤ query": lambda key, query: key <= query,
    "key > query": lambda key, query: key > query,
    "key ≥ query": lambda key, query: key >= query,
    "key ≠ query": lambda key, query: key != query,
    "key = query − 1": lambda key, query: key == query - 1,
    "key = query + 1": lambda key, query: key == query + 1,
}
MOST_SHOWN = 6
"""How many values a line spells out."""


def describe_layers(plan: ProgramPlan) -> list[dict[str, Any]]:
    """Return one entry per layer, in the order they run: its place in the model, its heads and its network.

    `heads` lists those of the self-attention first and then those of the cross-attention, each with the `site` and the
    number under which a trace knows it.
    """
    answering = "encoder" if plan.kind == "encoder" else "decoder"
    sides = (("source", "encoder"), ("target", answering))
    return [
        {
            "side": side,
            "layer": number,
            "heads": [*place_heads(f"{side}.{number}", level)],
            "units": len(level.units),
            "network": describe_network(level.units),
        }
        for levels, side in sides
        for number, level in enumerate(plan.levels.get(levels, ()))
    ]


def place_heads(layer: str, level: Level) -> Iterator[dict[str, Any]]:
    """Yield the description of every head of a layer with its site and its number there."""
    for slot, heads in (("attention", level.own), ("cross", level.cross)):
        for number, head in enumerate(heads):
            yield {"site": f"{layer}.{slot}", "head": number, **describe_head(head)}


def describe_heads(level: Level) -> list[dict[str, Any]]:
    return [describe_head(head) for head in (*level.own, *level.cross)]


def describe_head(head: HeadOperation) -> dict[str, Any]:
    """Return what a head compares, carries and writes, as data and in `words`."""
    compares = [
        {
            "keys": choice.keys.name,
            "queries": choice.queries.name,
            "where": name_relation(choice),
        }
        for choice in head.choices
    ]
    selects = " & ".join(
        f"select({condition['keys']}, {condition['queries']}, {condition['where']})" for condition in compares
    )
    then = "count what is selected" if head.values is None else f"aggregate({head.values.name})"
    return {
        "cross": head.cross,
        "compares": compares,
        "carries": None if head.values is None else head.values.name,
        "counts": head.values is None,
        "writes": head.out.name,
        "words": f"{selects}, then {then} → {head.out.name}",
    }


def describe_network(units: Iterable[HiddenUnit]) -> list[dict[str, Any]]:
    """Return each space that a network writes, and the spaces that it is computed from."""
    sources: dict[Space, dict[str, None]] = {}
    for unit in units:
        reads = [space.name for space, _ in unit.reads if space not in (ONE, HERE, SINK)]
        for space, _ in unit.writes:
            sources.setdefault(space, {}).update(dict.fromkeys(reads))
    return [
        {"writes": space.name, "reads": list(reads), "words": " and ".join(reads) + f" → {space.name}"}
        if reads
        else {"writes": space.name, "reads": [], "words": f"the same at every token → {space.name}"}
        for space, reads in sources.items()
    ]


def name_written(units: Iterable[HiddenUnit]) -> list[str]:
    """Return the names of the spaces that units write, each once."""
    return list(dict.fromkeys(space.name for unit in units for space, _ in unit.writes))


def name_relation(choice: HeadCondition) -> str:
    """Say when a key is selected: by a relation that has a name, by the keys alone, or by an example."""
    keys, queries = choice.keys.values, choice.queries.values
    pairs = {(k, q): bool(choice.predicate(k, q)) for k in keys for q in queries}
    for name, relation in RELATIONS.items():
        if all(agrees(relation, pair, fits) for pair, fits in pairs.items()):
            return name
    selected = [k for k in keys if any(pairs[k, q] for q in queries)]
    if all(pairs[k, q] for k in selected for q in queries):
        return f"key is {join_shortened(map(str, selected), MOST_SHOWN)}" if selected else "none"
    fit = [pair for pair, fits in pairs.items() if fits]
    key, query = fit[0]
    return f"{len(fit)} of {len(pairs)} pairs, such as key {key} for query {query}"


def agrees(relation: Callable[[Any, Any], bool], pair: tuple[Any, Any], fits: bool) -> bool:
    try:
        return relation(*pair) == fits
    except TypeError:
        return False


def join_shortened(values: Iterable[str], most: int) -> str:
    every = list(values)
    return " ".join(every) if len(every) <= most else f"{' '.join(every[: most - 1])} … {every[-1]}"


def list_program(plan: ProgramPlan) -> list[str]:
    """Return the program as lines `name = operation`, each after the lines it needs.

    Python functions have no text of their own here: a predicate is named by the relation it comes to, and the function
    of a `map` by what it gives for a few values.
    """
    lines: list[str] = []
    names: dict[int, str] = {}

    def name(sequence: language.Sequence) -> str:
        if id(sequence) not in names:
            operation = write_operation(sequence, plan.possible, name)
            n_same = sum(other.split("′")[0] == sequence.name for other in names.values())
            names[id(sequence)] = sequence.name + "′" * n_same
            if operation is not None:
                lines.append(f"{names[id(sequence)]} = {operation}")
        return names[id(sequence)]

    name(plan.program)
    return lines


def write_operation(
    sequence: language.Sequence, possible: Possible, name: Callable[[language.Sequence], str]
) -> str | None:
    """Write one operation; None for what a program starts from, the tokens and the indices."""

    def write_selector(selector: language.Selector) -> str:
        terms = []
        for term in selector.terms:
            keys, queries = (
                Space(name="", values=tuple(possible.of(operand))) for operand in (term.keys, term.queries)
            )
            choice = HeadCondition(
                keys=keys, queries=queries, predicate=lambda key, query, term=term: holds(term, key, query)
            )
            terms.append(f"select({name(term.keys)}, {name(term.queries)}, {name_relation(choice)})")
        return " & ".join(terms)

    match sequence:
        case language.Aggregate(selector=selector, values=values):
            return f"aggregate({write_selector(selector)}, {name(values)})"
        case language.Width(selector=selector):
            return f"selector_width({write_selector(selector)})"
        case language.Map(function=function, inner=inner):
            examples = [f"{plain(value)}→{function(plain(value))}" for value in possible.of(inner)]
            return f"map({name(inner)})  # {join_shortened(examples, 4)}"
        case language.SequenceMap(first=first, second=second):
            return f"map({name(first)}, {name(second)})"
        case language.WeightedSum(terms=terms):
            return " + ".join(f"{factor:g} × {name(inner)}" for inner, factor in terms)
        case language.ConstantSequence(value=value):
            return f"constant({value})"
        case _:
            return None
