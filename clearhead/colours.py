"""The colours of the roles, the same in the terminal, in figures and on pages.

They are Okabe and Ito's, which colour-blind readers tell apart too; the blue is lighter, to be legible on black as well
as on white. No meaning hangs on a colour alone.
"""

ROLES = {
    "query": "#0087D7",
    "key": "#E69F00",
    "value": "#009E73",
    "weight": "#D55E00",
    "context": "#CC79A7",
}

INKS = {
    "query": "#0068a8",
    "key": "#825800",
    "value": "#006b4e",
    "weight": "#a84600",
    "context": "#973d70",
}
"""The same as they are written with: dark enough to be read on white, as web/src/app.css has them."""
