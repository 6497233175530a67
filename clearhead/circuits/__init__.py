"""Circuits: which edges of a model make an answer, found by many methods and graded against exact truth."""

from clearhead.circuits.attribution import Attribution, attribute_logits
from clearhead.circuits.baselines import InformationFlowRoutes, Random, WeightSize
from clearhead.circuits.bench import BenchReport, make_contrast, run_bench
from clearhead.circuits.circuit import Circuit, CircuitCard, find_circuit, make_card
from clearhead.circuits.edge_edits import EdgeEdit
from clearhead.circuits.files import read_circuit, write_circuit
from clearhead.circuits.forward import Activations
from clearhead.circuits.gradients import EAP, AtPStar, CleanCorrupted, EAPIGActivations, EAPIGInputs, RelP
from clearhead.circuits.grading import average_precision
from clearhead.circuits.grammar import generate_samples
from clearhead.circuits.graph import Edge, Graph
from clearhead.circuits.methods import Contrast, Method, find_method, score_edges
from clearhead.circuits.metrics import AnswerLogProbability, Divergence, LogitDifference, Metric, Number
from clearhead.circuits.nodes import NodePatch, list_nodes, patch_nodes, read_nodes
from clearhead.circuits.patch_map import PatchMap
from clearhead.circuits.patching import ConstantSource, MeanSource, ZeroSource, patch_edges, patch_path, record
from clearhead.circuits.qk import QKAttribution, qk_attribution
from clearhead.circuits.search import ACDC, EdgePruning, Exact, NodeAttribution, NodePatching
from clearhead.circuits.texts import Texts
from clearhead.circuits.truth import BenchSample
from clearhead.circuits.vocabulary import HeadVocabulary

__all__ = [
    "ACDC",
    "EAP",
    "Activations",
    "AnswerLogProbability",
    "AtPStar",
    "Attribution",
    "BenchReport",
    "BenchSample",
    "Circuit",
    "CircuitCard",
    "CleanCorrupted",
    "ConstantSource",
    "Contrast",
    "Divergence",
    "EAPIGActivations",
    "EAPIGInputs",
    "Edge",
    "EdgeEdit",
    "EdgePruning",
    "Exact",
    "Graph",
    "HeadVocabulary",
    "InformationFlowRoutes",
    "LogitDifference",
    "MeanSource",
    "Method",
    "Metric",
    "NodeAttribution",
    "NodePatch",
    "NodePatching",
    "Number",
    "PatchMap",
    "QKAttribution",
    "Random",
    "RelP",
    "Texts",
    "WeightSize",
    "ZeroSource",
    "attribute_logits",
    "average_precision",
    "find_circuit",
    "find_method",
    "generate_samples",
    "list_nodes",
    "make_card",
    "make_contrast",
    "patch_edges",
    "patch_nodes",
    "patch_path",
    "qk_attribution",
    "read_circuit",
    "read_nodes",
    "record",
    "run_bench",
    "score_edges",
    "write_circuit",
]
