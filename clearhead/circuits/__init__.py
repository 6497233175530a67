"""Circuits: which edges of a model make an answer, found by many methods and graded against exact truth."""

from clearhead.circuits.forward import Activations
from clearhead.circuits.graph import Edge, Graph
from clearhead.circuits.patching import Constants, Mean, Zero, patch_edges, patch_path, record
from clearhead.circuits.texts import Texts

__all__ = ["Activations", "Constants", "Edge", "Graph", "Mean", "Texts", "Zero", "patch_edges", "patch_path", "record"]
