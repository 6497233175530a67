"""How the terminal shows roles and weights: a role keeps its colour in every table, arrow and sum."""

from rich.style import Style
from rich.theme import Theme

from clearhead.colours import ROLES

HEAT = ("#ffffff", "#ffd7af", "#ffaf5f", "#ff8700", "#ff5f00", "#d75f00")
"""Grounds for weights from 0 to 1, with black on them. Terminals of 256 colours have just these."""

THEME = Theme({**ROLES, "title": "bold", "chosen": "bold", "quiet": "dim", "refused": f"bold {ROLES['weight']}"})


def heat(weight: float) -> Style:
    """Black on the ground for a weight from 0 to 1."""
    return Style(color="#000000", bgcolor=HEAT[round(min(max(weight, 0.0), 1.0) * (len(HEAT) - 1))])
