"""Hops of a walk through the package, counted while it is walked (docs/architecture.md).

A hop is a function of the package that is on the stack where a number is computed from the weights or a token is
chosen, and where a job is handed over: closures, wrappers and coroutines count, comprehensions do not. So what is
called on the side and returns, such as a check, is no hop. The forward pass that reads a prompt is the model's own
walk: a chain ends where a `forward` begins.
"""

import sys
import threading
from collections import defaultdict
from pathlib import Path

import clearhead

ROOT = str(Path(clearhead.__file__).parent)
INNER = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
COMPUTED = {"linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "scaled_dot_product_attention", "softmax"}
CHOSEN = {"log_softmax", "max", "topk", "argmax", "index_copy_"}


class Hops:
    """The deepest chain of each thread while the `with` block runs, as names of functions.

    `handed` are functions of the package at which a chain is looked at too.
    """

    def __init__(self, *handed: str) -> None:
        self.handed, self.deepest = set(handed), defaultdict[str, list[str]](list)

    def __enter__(self) -> "Hops":
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def note(self, frame, event, argument) -> None:
        if event == "c_call":
            counts = getattr(argument, "__name__", "") in COMPUTED | CHOSEN and argument is not max
        else:
            counts = event == "call" and frame.f_code.co_qualname in self.handed
        if not counts:
            return
        chain = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(ROOT) and code.co_name not in INNER:
                chain.append(f"{code.co_filename[len(ROOT) + 1 :]} {code.co_qualname}")
                if code.co_name == "forward":  # the model's own walk
                    chain.clear()
            frame = frame.f_back
        thread = threading.current_thread().name
        self.deepest[thread] = max(self.deepest[thread], chain[::-1], key=len)
