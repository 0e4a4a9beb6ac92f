"""A filter of system calls for the child process on Linux: no new process, no socket, no ptrace.

What the audit hook in :mod:`.child` refuses politely is refused here by the kernel, for code that
goes around Python. Threads stay possible. Where the kernel or the processor is another one, nothing
happens.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable

ALLOW, KILL = 0x7FFF0000, 0x80000000
ERRNO = 0x00050000
EPERM, ENOSYS = 1, 38
CLONE_THREAD = 0x00010000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: ld [k]; jeq k; jset k; ret k
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data

SYSTEM_CALLS = {  # processor → (its audit number, clone, clone3, those that are refused)
    "x86_64": (
        0xC000003E,
        56,
        435,
        # socket, socketpair, fork, vfork, execve, execveat, ptrace, process_vm_readv and _writev,
        # kill, pidfd_send_signal, setsid, setpgid, unshare, mount
        (41, 53, 57, 58, 59, 322, 101, 310, 311, 62, 424, 112, 109, 272, 165),
    ),
    "aarch64": (
        0xC00000B7,
        220,
        435,
        (198, 199, 221, 281, 117, 270, 271, 129, 424, 157, 154, 97, 40),
    ),
}


def refuse_processes_and_sockets(prctl: Callable[..., int]) -> bool:
    """Install the filter for this process, for good. False where it cannot be."""
    known = SYSTEM_CALLS.get(os.uname().machine)
    if known is None:
        return False
    program = b"".join(filter_program(*known))
    buffer = ctypes.create_string_buffer(program)
    fprog = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    )
    prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    return prctl(22, 2, ctypes.c_void_p(ctypes.addressof(fprog)), 0, 0) == 0  # PR_SET_SECCOMP


def filter_program(
    architecture: int, clone: int, clone3: int, refused: tuple[int, ...]
) -> list[bytes]:
    """The filter: a way of starting threads stays, everything listed gives EPERM."""

    def step(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, k)

    program = [
        step(LOAD, ARCHITECTURE),
        step(EQUAL, architecture, 1, 0),
        step(RETURN, KILL),
        step(LOAD, NUMBER),
        step(EQUAL, clone3, 0, 1),  # its flags are in memory that a filter cannot read:
        step(RETURN, ERRNO | ENOSYS),  # the C library then falls back on clone
        step(EQUAL, clone, 0, 4),
        step(LOAD, FIRST_ARGUMENT),
        step(ANY_BIT, CLONE_THREAD, 0, 1),
        step(RETURN, ALLOW),
        step(RETURN, ERRNO | EPERM),
    ]
    for number in refused:
        program += [step(EQUAL, number, 0, 1), step(RETURN, ERRNO | EPERM)]
    return [*program, step(RETURN, ALLOW)]
