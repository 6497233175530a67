"""Circuits as files: MIB's circuit JSON, Neuronpedia's attribution-graph JSON, and GraphML; each is read back.

GraphML has everything. MIB's format knows decoders alone: one sender `input` for all embeddings (its score is their
sum), and no constant. Neuronpedia's has the edges of the circuit; q, k and v are kept in a field of our own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import torch

from clearhead.calls import public
from clearhead.circuits.circuit import Circuit
from clearhead.circuits.graph import Edge, Graph, node_of
from clearhead.errors import OptionError, RunError
from clearhead.files import read_bytes, read_json, write_bytes, write_text

GRAPHML = "http://graphml.graphdrawing.org/xmlns"
UNFIT = (KeyError, TypeError, AttributeError, ValueError, OverflowError)
"""What JSON of another form leads to."""
ROLES = {"query": "q", "key": "k", "value": "v"}


class EdgeRow(NamedTuple):
    """An edge as a file has it."""

    edge: str
    score: float
    chosen: bool


def read_content(path: Path) -> Any:
    try:
        return read_json(path)
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such file") from None


@public
def write_circuit(circuit: Circuit, path: str | Path, *, tokens: Sequence[str] = ()) -> None:
    """Write a circuit in the format of the file's ending: `.mib.json`, `.neuronpedia.json` or `.graphml`.

    Args:
        circuit: The circuit.
        path: The file.
        tokens: The tokens of the clean text, which Neuronpedia shows.

    >>> import pathlib, tempfile, torch, clearhead as ch
    >>> from clearhead.circuits import Circuit, Graph, read_circuit, write_circuit
    >>> graph = Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> chosen = torch.arange(len(graph.edges)) < 3
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.graphml"
    >>> write_circuit(Circuit(graph=graph, scores=chosen[None].float(), chosen=chosen), path)
    >>> int(read_circuit(graph, path).chosen.sum())
    3
    """
    path = Path(path)
    format_of(path).write(circuit, path, tokens)


@public
def read_circuit(graph: Graph, path: str | Path) -> Circuit:
    """Return a circuit of this graph, from a file in one of the three formats.

    Args:
        graph: The graph of the model.
        path: The file.

    Returns:
        The circuit.

    Raises:
        RunError: If there is no such file, or it is not a circuit of this model.

    >>> import pathlib, tempfile, torch, clearhead as ch
    >>> from clearhead.circuits import Circuit, Graph, read_circuit, write_circuit
    >>> graph = Graph(ch.presets.gpt2("tiny", vocabulary=20).build().eval())
    >>> chosen = torch.arange(len(graph.edges)) < 3
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.mib.json"
    >>> write_circuit(Circuit(graph=graph, scores=chosen[None].float(), chosen=chosen), path)
    >>> bool(read_circuit(graph, path).chosen.any())
    True
    """
    path = Path(path)
    scores, chosen = torch.zeros(1, len(graph.edges)), torch.zeros(len(graph.edges), dtype=torch.bool)
    for name, score, is_chosen in format_of(path).read(graph, path):
        number = graph.find(name)
        if not abs(score) <= torch.finfo(scores.dtype).max:
            raise RunError(f"{path}: the score of {name} is {score}; expected a number as float32 has it")
        scores[0, number], chosen[number] = score, is_chosen
    return Circuit(graph=graph, scores=scores, chosen=chosen, method=f"read from {path.name}")


def write_graphml(circuit: Circuit, path: Path, tokens: Sequence[str]) -> None:
    root = ElementTree.Element("graphml", xmlns=GRAPHML)
    for name, kind in (("receiver", "string"), ("score", "double"), ("chosen", "boolean")):
        ElementTree.SubElement(root, "key", {"id": name, "for": "edge", "attr.name": name, "attr.type": kind})
    drawn = ElementTree.SubElement(root, "graph", edgedefault="directed")
    graph, mean = circuit.graph, circuit.mean
    for node in dict.fromkeys([*graph.senders, *map(node_of, graph.receivers)]):
        ElementTree.SubElement(drawn, "node", id=node)
    for number, edge in enumerate(graph.edges):
        line = ElementTree.SubElement(drawn, "edge", source=edge.sender, target=node_of(edge.receiver))
        values = {
            "receiver": edge.receiver,
            "score": repr(float(mean[number])),
            "chosen": str(bool(circuit.chosen[number])).lower(),
        }
        for name, value in values.items():
            ElementTree.SubElement(line, "data", key=name).text = value
    write_bytes(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def read_graphml(graph: Graph, path: Path) -> list[EdgeRow]:
    try:
        text = read_bytes(path).decode()  # as text: another encoding in its first line could hide what is refused here
        if "<!" in text:  # entities may grow without bound
            raise ValueError("a circuit has no DOCTYPE, entities or comments")
        if text.count("<") > 20 * len(graph.edges) + 1000:  # an element takes 30 times its bytes of memory
            raise ValueError(f"it has far more than the {len(graph.edges):,} edges of this model")
        root = ElementTree.fromstring(text)
        rows = []
        for line in root.iter(f"{{{GRAPHML}}}edge"):
            values = {str(item.get("key")): item.text or "" for item in line}
            edge = str(Edge(line.attrib["source"], values["receiver"]))
            rows.append(EdgeRow(edge, float(values["score"]), values["chosen"] == "true"))
    except (OSError, ElementTree.ParseError, KeyError, ValueError) as error:
        raise RunError(f"{path}: this is not the GraphML of a circuit: {error!s:.200}") from None
    return rows


def write_mib(circuit: Circuit, path: Path, tokens: Sequence[str]) -> None:
    graph = circuit.graph
    scores: dict[str, float] = {}
    chosen: dict[str, bool] = {}
    mean = circuit.mean
    for number, edge in enumerate(graph.edges):
        for name in mib_names(graph, edge):
            scores[name] = scores.get(name, 0.0) + float(mean[number])
            chosen[name] = chosen.get(name, False) or bool(circuit.chosen[number])
    inside = {end for name, is_chosen in chosen.items() if is_chosen for end in mib_ends(name)}
    part = graph.names.sides["decoder"][1]
    heads = [layer.shape.n_heads for layer in graph.names.sites.values()]
    nodes = dict.fromkeys(["input", *(end for name in scores for end in mib_ends(name)), "logits"])
    content = {
        "cfg": {
            "n_layers": len(part.stack.blocks),
            "n_heads": max(heads),
            "parallel_attn_mlp": Edge("decoder.0.attention.head.0", "decoder.0.feed_forward") not in graph.number,
            "d_model": part.spec.d_model,
        },
        "nodes": {node: {"in_graph": node in inside or node in ("input", "logits")} for node in nodes},
        "edges": {name: {"score": scores[name], "in_graph": chosen[name]} for name in scores},
    }
    write_text(path, json.dumps(content))


def mib_ends(name: str) -> tuple[str, str]:
    sender, _, receiver = name.partition("->")
    return sender, receiver.partition("<")[0]


def mib_names(graph: Graph, edge: Edge) -> list[str]:
    """Return MIB's names of an edge: none for a constant's; for a key or value that heads share, one for each head."""
    if set(graph.names.sides) != {"decoder"}:
        raise OptionError("MIB's circuit files are of decoders alone; write .graphml, which has every model")
    if edge.sender == "decoder.constant":
        return []
    sender = mib_node(edge.sender)
    port, _, head = edge.receiver.rpartition(".")
    site, _, role = port.rpartition(".")
    if role not in ROLES:
        return [f"{sender}->{mib_node(edge.receiver)}"]
    shape = graph.names.sites[site].shape
    group = 1 if role == "query" else shape.n_heads // shape.n_kv_heads
    heads = range(int(head) * group, (int(head) + 1) * group)
    return [f"{sender}->a{site.split('.')[1]}.h{number}<{ROLES[role]}>" for number in heads]


def mib_node(name: str) -> str:
    """Return MIB's name of a node.

    >>> mib_node("decoder.3.attention.head.1"), mib_node("decoder.0.feed_forward"), mib_node("decoder.output")
    ('a3.h1', 'm0', 'logits')
    """
    _, block, *rest = name.split(".")
    if block in ("embedding", "output"):
        return {"embedding": "input", "output": "logits"}[block]
    return f"m{block}" if rest == ["feed_forward"] else f"a{block}.h{rest[-1]}"


def read_mib(graph: Graph, path: Path) -> list[EdgeRow]:
    """Return MIB's edges as ours; the score of `input` is that of tokens, and it is chosen for all embeddings."""
    content = read_content(path)
    try:
        known = {str(name): (float(row["score"]), bool(row["in_graph"])) for name, row in content["edges"].items()}
    except UNFIT as error:
        raise RunError(f"{path}: this is not a circuit of MIB: {error!r:.200}") from None
    rows = []
    for edge in graph.edges:
        found = [known[name] for name in mib_names(graph, edge) if name in known]
        score = 0.0 if keeps(edge) else sum(score for score, _ in found) / max(1, len(found))
        rows.append(EdgeRow(str(edge), score, any(chosen for _, chosen in found)))
    return rows


def keeps(edge: Edge) -> bool:
    """Check whether an edge shares MIB's name with that of the tokens, which has the score."""
    return ".embedding." in edge.sender and not edge.sender.endswith(".token")


def write_neuronpedia(circuit: Circuit, path: Path, tokens: Sequence[str]) -> None:
    last = max(0, len(tokens) - 1)
    numbers = {node: number for number, node in enumerate(circuit.nodes)}
    nodes = [neuronpedia_node(circuit.graph, node, number, last) for node, number in numbers.items()]
    ids = {node: made["node_id"] for node, made in zip(numbers, nodes, strict=True)}
    links = [
        {"source": ids[edge.sender], "target": ids[node_of(edge.receiver)], "weight": score, "edge": str(edge)}
        for edge, score in circuit.edges
    ]
    name = path.name.removesuffix(".neuronpedia.json")
    content = {
        "metadata": {
            "slug": name,
            "scan": "clearhead",
            "transcoder_list": [],
            "prompt_tokens": list(tokens),
            "prompt": "".join(tokens),
            "node_threshold": None,
            "schema_version": 1,
        },
        "qParams": {
            "pinnedIds": list(ids.values()),
            "supernodes": [],
            "linkType": "both",
            "clickedId": "",
            "sg_pos": "",
        },
        "nodes": nodes,
        "links": links,
    }
    write_text(path, json.dumps(content))


def neuronpedia_node(graph: Graph, node: str, number: int, place: int) -> dict[str, Any]:
    side, block, *_ = node.split(".")
    depth = len(graph.names.sides[side][1].stack.blocks)
    layer = {"embedding": "E", "output": str(depth + 1)}.get(block, block if block.isdigit() else "E")
    kind = {"embedding": "embedding", "output": "logit"}.get(block, "attention head" if ".head." in node else "mlp")
    return {
        "node_id": f"{layer}_{number}_{place}",
        "feature": number,
        "layer": layer,
        "ctx_idx": place,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": kind == "logit",
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": f"{layer}_{number}-0",
        "clerp": node,
        "influence": None,
        "activation": None,
    }


def read_neuronpedia(graph: Graph, path: Path) -> list[EdgeRow]:
    content = read_content(path)
    try:
        return [EdgeRow(str(link["edge"]), float(link["weight"]), True) for link in content["links"]]
    except UNFIT as error:
        raise RunError(f"{path}: this is not an attribution graph that Clearhead wrote: {error!r:.200}") from None


class CircuitFormat(NamedTuple):
    """How a format is written and read."""

    write: Callable[[Circuit, Path, Sequence[str]], None]
    read: Callable[[Graph, Path], list[EdgeRow]]


FORMATS: Mapping[str, CircuitFormat] = {
    ".graphml": CircuitFormat(write_graphml, read_graphml),
    ".mib.json": CircuitFormat(write_mib, read_mib),
    ".neuronpedia.json": CircuitFormat(write_neuronpedia, read_neuronpedia),
}
"""By the ending of a file's name."""


def format_of(path: Path) -> CircuitFormat:
    for ending, made in FORMATS.items():
        if path.name.endswith(ending):
            return made
    raise OptionError(f"{path.name}: a circuit's file ends in {', '.join(FORMATS)}")
