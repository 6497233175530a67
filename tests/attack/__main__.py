"""`python -m tests.attack --seed 1`: attack run folders, files, texts and the page's server, and print what survived.

`make attack` runs it. Two attacks run side by side, each in a process of its own.
"""

import os
import sys

from tests.attack.forking import ONE_THREAD

if __name__ == "__main__":
    os.environ.update(ONE_THREAD)  # before torch is imported, which starts its threads then
    from tests.attack.running import main

    sys.exit(main())
