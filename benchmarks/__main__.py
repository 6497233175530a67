"""Measure the figures of gpu.md (`python -m benchmarks gpu`) and cpu.md (`… cpu`) in benchmarks/results anew, and write
these pages; `… report FILE FILE` writes the first from several runs."""

import importlib
import sys

COMMANDS = ("gpu", "cpu", "report")


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name not in COMMANDS:
        sys.exit(f"usage: python -m benchmarks {{{', '.join(COMMANDS)}}} [--help]; came {name!r}")
    importlib.import_module(f"benchmarks.{name}").main(arguments)


if __name__ == "__main__":
    main()
