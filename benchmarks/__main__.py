"""Measure every figure of docs/benchmarks.md anew (`python -m benchmarks gpu`), and write it (`… report FILE`)."""

import importlib
import sys

COMMANDS = ("gpu", "report")


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name not in COMMANDS:
        sys.exit(f"usage: python -m benchmarks {{{', '.join(COMMANDS)}}} [--help]; came {name!r}")
    importlib.import_module(f"benchmarks.{name}").main(arguments)


if __name__ == "__main__":
    main()
