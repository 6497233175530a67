"""The colours of the roles, for every verb. They are Okabe and Ito's, which colour-blind readers tell apart too (the
blue is lighter, to be legible on black as well as on white).

A role keeps its colour in every table, arrow and sum. No meaning hangs on a colour alone.
"""

from rich.style import Style
from rich.theme import Theme

__all__ = ["HEAT", "ROLES", "THEME", "heat"]

ROLES = {
    "query": "#0087D7",
    "key": "#E69F00",
    "value": "#009E73",
    "weight": "#D55E00",
    "context": "#CC79A7",
}
HEAT = ("#ffffff", "#ffd7af", "#ffaf5f", "#ff8700", "#ff5f00", "#d75f00")
"""Grounds for weights from 0 to 1, with black on them. Terminals of 256 colours have just these."""

THEME = Theme({**ROLES, "title": "bold", "chosen": "bold", "quiet": "dim", "refused": f"bold {ROLES['weight']}"})


def heat(weight: float) -> Style:
    """Black on the ground for a weight from 0 to 1."""
    return Style(color="#000000", bgcolor=HEAT[round(min(max(weight, 0.0), 1.0) * (len(HEAT) - 1))])
