"""Measures how long `import clearhead`, and its heart, take beside `import torch`, in processes of their own, in turn.

    python release/import_time.py [ROUNDS]

Processor time of a whole process, the least of the rounds: what other programs do meanwhile disturbs it little.
Bytecode is read, as it is where pip has installed the package; what runs before the first round writes it.
"""

import os
import subprocess
import sys

STATEMENTS = {
    "an empty process": "pass",
    "import torch": "import torch",
    "import clearhead": "import clearhead",
    "import clearhead; clearhead.attend": "import clearhead; clearhead.attend",
    "import clearhead; clearhead.load": "import clearhead; clearhead.load",
    "every public name": "import clearhead\nfor name in clearhead.__all__: getattr(clearhead, name)",
}


def processor_seconds(code: str) -> float:
    """Run Python code in a process of its own, and return its processor time."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    subprocess.run([sys.executable, "-c", code], env=variables, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Print a line for each statement: its seconds, and as a multiple of torch's."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for code in STATEMENTS.values():
        processor_seconds(code)  # from the disk into memory
    times = [{name: processor_seconds(code) for name, code in STATEMENTS.items()} for _ in range(rounds)]
    least = {name: min(one[name] for one in times) for name in STATEMENTS}
    for name, seconds in least.items():
        print(f"{name:36} {seconds:6.2f} s   {seconds / least['import torch']:5.2f} × torch")


if __name__ == "__main__":
    main()
