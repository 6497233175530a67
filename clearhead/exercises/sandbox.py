"""A filter of system calls for answers: no processes, nothing done to others, no network, no change of any file.

On Linux (x86-64 and ARM64) the kernel refuses these calls with EPERM (seccomp), whoever runs it; it needs no rights.
Elsewhere there is no filter, and `confine` says so. Files can still be read.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator

EPERM, ENOSYS = 1, 38
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
"""The instructions of the filter's machine: load a word, compare, test bits, give a verdict."""
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16
"""Where a call's number, the machine's and the first argument stand in what the filter sees; arguments have 8 bytes."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
THREAD = 0x00010000
"""CLONE_THREAD: threads are no processes, and torch needs them."""
NEVER = {
    "x86_64": [
        *(57, 58, 59, 322),  # fork, vfork, execve, execveat
        *(62, 129, 200, 234, 297, 424),  # kill and its kin
        *(76, 77, 82, 83, 84, 85, 86, 87, 88, 90, 91, 92, 93, 94, 133),  # truncate, rename, mkdir, unlink, chmod, mknod
        *(258, 259, 260, 261, 263, 264, 265, 266, 268, 280, 316, 452),  # the same, by folder
        *(132, 235, 188, 189, 190, 197, 198, 199, 463, 466),  # times and attributes of files
        *(438, 141, 142, 144, 203, 251, 256, 279, 314),  # files, priorities and processors of other processes
        *(29, 64, 68, 240, 248, 249, 250, 298),  # memory, queues and keys that outlive a process; counters of others
        *(153, 155, 161, 163, 164, 166, 167, 168, 169, 170, 171, 172, 173, 175, 176, 179),  # what only root may
        *(227, 246, 272, 305, 308, 313, 320, 428, 429, 430, 442),
        *(41, 42, 101, 112, 165, 304, 310, 311, 321, 425),  # socket, connect, ptrace, setsid, mount, bpf, io_uring
    ],
    "aarch64": [
        *(221, 281, 129, 130, 131, 138, 240, 424),
        *(33, 34, 35, 36, 37, 38, 45, 46, 52, 53, 54, 55, 88, 276),
        *(5, 6, 7, 14, 15, 16, 452, 463, 466),
        *(438, 30, 118, 119, 122, 140, 238, 239, 274),
        *(180, 186, 190, 194, 217, 218, 219, 241),
        *(39, 41, 51, 60, 89, 97, 104, 105, 106, 112, 142, 161, 162, 170, 171, 224, 225, 266, 268, 273, 294),
        *(428, 429, 430, 442),
        *(40, 117, 157, 198, 203, 264, 270, 271, 280, 425),
    ],
}
"""System calls that an answer never makes, by machine."""
CLONE, CLONE3, OPENAT2 = {"x86_64": 56, "aarch64": 220}, 435, 437
LIMIT = {"x86_64": 302, "aarch64": 261}
"""prlimit64, whose first argument is a process; 0 is this one."""
X32 = 0x40000000
"""A bit of call numbers that names them a second time, on kernels with the x32 form of x86-64."""
OPENS = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}
"""Calls that open a file, with the number of the argument that says how."""
MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}
"""The machine's number, and that of the call `seccomp`."""

Instruction = tuple[int, int, int, int]


def confine() -> bool:
    """Put this process, with all its threads, under the filter for good; False if there is none."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        return False
    made = b"".join(struct.pack("HBBI", *instruction) for instruction in rules(machine))
    code = ctypes.create_string_buffer(made, len(made))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(made) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which only root may set a filter
    return libc.syscall(MACHINES[machine][1], 1, 1, program) == 0  # for all threads


def rules(machine: str) -> Iterator[Instruction]:
    """Yield the filter: each rule is skipped unless the call has its number."""
    yield LOAD, 0, 0, ARCHITECTURE
    yield from when(MACHINES[machine][0], [(LOAD, 0, 0, NUMBER)], otherwise=[verdict(ERROR | EPERM)])
    yield from ((ANY_BIT, 0, 1, X32), verdict(ERROR | EPERM))
    for number in NEVER[machine]:
        yield from when(number, [verdict(ERROR | EPERM)])
    for number in (CLONE3, OPENAT2):  # whoever asks for these falls back on the older ones
        yield from when(number, [verdict(ERROR | ENOSYS)])
    yield from when(CLONE[machine], [argument(0), (ANY_BIT, 1, 0, THREAD), verdict(ERROR | EPERM), verdict(ALLOW)])
    yield from when(LIMIT[machine], [argument(0), (EQUAL, 1, 0, 0), verdict(ERROR | EPERM), verdict(ALLOW)])
    for number, place in OPENS[machine].items():
        yield from when(number, [argument(place), (ANY_BIT, 0, 1, WRITES), verdict(ERROR | EPERM), verdict(ALLOW)])
    yield verdict(ALLOW)


def when(value: int, then: list[Instruction], otherwise: list[Instruction] | None = None) -> Iterator[Instruction]:
    """Yield instructions that run if the loaded word has a value; `otherwise` ends the filter if it has not."""
    others = otherwise or []
    yield (EQUAL, len(others), 0 if others else len(then), value)
    yield from others
    yield from then


def verdict(value: int) -> Instruction:
    return RETURN, 0, 0, value


def argument(place: int) -> Instruction:
    return LOAD, 0, 0, ARGUMENT + 8 * place
