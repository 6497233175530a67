"""`python -m benchmarks gpu`: every figure of docs/benchmarks.md, measured anew with its peers in the same run."""

import sys

from benchmarks import gpu

COMMANDS = {"gpu": gpu.main}


def main() -> None:
    name, *arguments = sys.argv[1:] or [""]
    if name not in COMMANDS:
        sys.exit(f"usage: python -m benchmarks {{{', '.join(COMMANDS)}}} [--help]; came {name!r}")
    COMMANDS[name](arguments)


if __name__ == "__main__":
    main()
