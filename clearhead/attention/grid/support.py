"""The promise: which kernel serves which part. Written by hand; the grid holds every *yes* to the reference and every
*no* to its error.

A combination is served if each of its parts is; `REASONS` says what the error of a refused one says. A part that is not
listed is promised what its form is: the rows in parentheses. The reference serves everything, and is the definition.
"""

from collections.abc import Mapping

from clearhead.compiling import missing_triton

PROMISE = """
axis        part                  fused flex chunked recurrent blockwise linear argmax
similarity  default               yes   yes  yes     yes       yes       yes    yes
similarity  dot                   yes   yes  k       k         yes       k      yes
similarity  scaled dot            yes   yes  k       k         yes       k      yes
similarity  cosine                yes   yes  k       k         yes       k      yes
similarity  additive              d     d    k       k         yes       k      d
similarity  (dot)                 yes   yes  k       k         yes       k      yes
similarity  (pairwise)            d     d    k       k         yes       k      d
weighting   softmax               yes   yes  k       k         yes       k      a
weighting   warm softmax          yes   yes  k       k         yes       k      a
weighting   argmax                s     s    k       k         yes       k      yes
weighting   argmax last           s     s    k       k         yes       k      yes
weighting   argmax average        s     s    k       k         yes       k      yes
weighting   argmax frozen         s     s    k       k         yes       k      yes
weighting   sigmoid               s     s    k       k         yes       k      a
weighting   sparsemax             s     s    k       k         yes       k      a
weighting   linear elu            s     s    yes     yes       yes       yes    a
weighting   linear relu           s     s    yes     yes       yes       yes    a
weighting   linear softmax        s     s    yes     yes       yes       yes    a
weighting   linear random         s     s    yes     yes       yes       x      a
weighting   linear sum            s     s    yes     yes       yes       yes    a
weighting   (rows)                s     s    k       k         yes       k      a
weighting   (argmax)              s     s    k       k         yes       k      yes
weighting   (softmax)             yes   yes  k       k         yes       k      a
weighting   (kernelized)          s     s    yes     yes       yes       yes    a
weighting   (log kernelized)      s     s    yes     yes       yes       x      a
position    none                  yes   yes  yes     yes       yes       yes    yes
position    rotary                yes   yes  yes     yes       yes       yes    yes
position    rotary halves         yes   yes  yes     yes       yes       yes    yes
position    rotary partial        yes   yes  yes     yes       yes       yes    yes
position    rotary scaled         yes   yes  yes     yes       yes       yes    yes
position    alibi                 yes   yes  k       k         yes       k      b
position    t5                    yes   yes  k       k         yes       k      b
position    (none)                yes   yes  yes     yes       yes       yes    yes
position    (fixed)               yes   yes  k       k         yes       k      b
position    (learned)             yes   yes  k       k         yes       k      b
mask        none                  yes   yes  yes     yes       yes       yes    yes
mask        causal                yes   yes  yes     yes       yes       yes    yes
mask        padding               yes   yes  yes     yes       yes       yes    yes
mask        window                yes   yes  yes     n         yes       m      m
mask        window both           yes   yes  yes     n         yes       m      m
mask        prefix                yes   yes  yes     n         yes       m      m
mask        document              yes   yes  yes     l         yes       m      m
mask        document scattered    yes   yes  m       n         yes       m      m
mask        document cross        yes   yes  m       n         yes       m      m
mask        function              yes   yes  m       n         yes       m      m
mask        tensor                yes   yes  m       n         yes       m      m
mask        tensor a head         yes   yes  m       n         yes       m      m
mask        union                 yes   yes  m       n         yes       m      m
mask        negation              yes   yes  m       n         yes       m      m
mask        nothing               yes   yes  m       n         yes       m      m
mask        causal padding        yes   yes  yes     yes       yes       yes    yes
mask        causal document       yes   yes  yes     yes       yes       m      m
mask        causal window padding yes   yes  yes     n         yes       m      m
mask        (ordered)             yes   yes  m       n         yes       m      m
mask        (unordered)           yes   yes  m       n         yes       m      m
heads       equal                 yes   yes  yes     yes       yes       yes    yes
heads       grouped               yes   yes  yes     yes       yes       yes    yes
heads       single key            yes   yes  yes     yes       yes       yes    yes
heads       wide value            yes   yes  yes     yes       yes       yes    yes
heads       narrow value          yes   yes  yes     yes       yes       yes    yes
lengths     square                yes   yes  yes     yes       yes       yes    yes
lengths     more keys             yes   yes  yes     yes       yes       yes    yes
lengths     more queries          yes   yes  yes     yes       yes       yes    yes
lengths     one query             yes   yes  yes     yes       yes       yes    yes
lengths     one of each           yes   yes  yes     yes       yes       yes    yes
dtype       float64               yes   f    yes     yes       yes       f      f
dtype       float32               yes   yes  yes     yes       yes       g      g
dtype       bfloat16              yes   c    yes     yes       yes       g      g
dtype       float16               yes   c    yes     yes       yes       g      g
gradients   needed                yes   c    yes     yes       yes       yes    yes
gradients   not needed            yes   yes  yes     yes       yes       yes    yes
dropout     0                     yes   yes  yes     yes       yes       yes    yes
dropout     0.5                   yes   o    o       o         yes       o      o
positions   default               yes   yes  yes     yes       yes       yes    yes
positions   given                 yes   yes  yes     yes       yes       yes    yes
"""

REASONS = {
    "s": "softmax, and no other weighting",
    "d": "dot product; this similarity is not one",
    "k": "only in kernelized attention",
    "m": "mask of this kind",
    "n": "cannot forget keys",
    "l": "has seen no later key",
    "f": "no float64",
    "c": "on a CPU",
    "g": "on a CUDA device only",
    "a": "argmax, and no other weighting",
    "b": "adds no bias",
    "x": "features come as logarithms",
    "o": "dropout",
}

PAIRS = (
    # Two parts that are each is_served, but not together; the kernels, or every one.
    ("weighting (kernelized)", "similarity (dot)", "*", "leave similarity out"),
    ("weighting (kernelized)", "similarity (pairwise)", "*", "leave similarity out"),
    ("weighting (kernelized)", "position (fixed)", "*", "no score to add a bias to"),
    ("weighting (kernelized)", "position (learned)", "*", "no score to add a bias to"),
    ("weighting (log kernelized)", "similarity (dot)", "*", "leave similarity out"),
    ("weighting (log kernelized)", "similarity (pairwise)", "*", "leave similarity out"),
    ("weighting (log kernelized)", "position (fixed)", "*", "no score to add a bias to"),
    ("weighting (log kernelized)", "position (learned)", "*", "no score to add a bias to"),
    ("positions given", "mask (ordered)", "chunked recurrent linear argmax", "positions were given"),
    ("positions given", "mask padding", "linear argmax", "positions were given"),
)


def parse(text: str) -> dict[str, dict[str, str]]:
    """Return `{"axis part": {kernel: cell}}`; the first word of a line is the axis, the others the cells."""
    header, *lines = (line.split() for line in text.strip().splitlines())
    kernels = header[2:]
    rows = {}
    for axis, *words in lines:
        part, cells = words[: -len(kernels)], words[-len(kernels) :]
        rows[f"{axis} {' '.join(part)}"] = dict(zip(kernels, cells, strict=True))
    return rows


ROWS = parse(PROMISE)
KERNEL_NAMES = tuple(PROMISE.strip().splitlines()[0].split()[2:])


def cell(axis: str, part: str, form: str | None, kernel: str) -> str:
    """Return the table's cell for one part on one kernel; of a part it does not list, by its form."""
    row = ROWS.get(f"{axis} {part}") or ROWS[f"{axis} ({form})"]
    return row[kernel]


def is_served(code: str, device: str) -> bool:
    """Check whether a cell is a yes on that device: `c` is a no on a CPU alone, `g` where Triton cannot run."""
    if code == "g":
        return missing_triton(device) is None
    return code == "yes" or (code == "c" and device != "cpu")


def promise(parts: Mapping[str, str], forms: Mapping[str, str], kernel: str, device: str = "cpu") -> list[str]:
    """Return what the error of this combination may say, any one of these; empty if it is served.

    `parts` names the part on each axis, `forms` the form of those that have one.
    """
    named = {f"{axis} {part}" for axis, part in parts.items()} | {f"{axis} ({form})" for axis, form in forms.items()}
    together = [
        reason
        for first, second, on, reason in PAIRS
        if {first, second} <= named and (on == "*" or kernel in on.split())
    ]
    cells = [cell(axis, part, forms.get(axis), kernel) for axis, part in parts.items()]
    return together + [REASONS[code] for code in cells if not is_served(code, device)]
