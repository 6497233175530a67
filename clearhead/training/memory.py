"""How much memory the process has had at most: on a GPU the device's, else the machine's."""

import re
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
"""Where Linux tells it. What it tells elsewhere, getrusage, begins in a new process with its parent's peak."""


def memory_mb(device: torch.device) -> int:
    """Return the peak so far in MB; 0 where the system does not say, as on Windows."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    if device.type == "mps":
        # What the driver has given to this process. It is seldom given back, so it is near the peak.
        return round(torch.mps.driver_allocated_memory() / 2**20)
    match = re.search(r"VmHWM:\s*(\d+) kB", STATUS.read_text(encoding="utf-8")) if STATUS.exists() else None
    if match is not None:
        return round(int(match[1]) / 2**10)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))
