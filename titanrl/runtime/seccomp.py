"""A seccomp filter for untrusted programs: system calls that no ordinary program needs fail with EPERM."""

from __future__ import annotations

import errno
import os
import struct

__all__ = ["seccomp_filter"]

# Numbers of one kind of call per architecture, from the kernel's tables asm/unistd.h.
_CALLS = {
    "x86_64": {
        "ptrace": 101,
        "syslog": 103,
        "personality": 135,
        "pivot_root": 155,
        "acct": 163,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "init_module": 175,
        "delete_module": 176,
        "quotactl": 179,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "open_by_handle_at": 304,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "memfd_create": 319,
        "bpf": 321,
        "userfaultfd": 323,
        "shmget": 29,
        "semget": 64,
        "msgget": 68,
        "mq_open": 240,
    },
    "aarch64": {
        "ptrace": 117,
        "syslog": 116,
        "personality": 92,
        "pivot_root": 41,
        "acct": 89,
        "mount": 40,
        "umount2": 39,
        "swapon": 224,
        "swapoff": 225,
        "reboot": 142,
        "init_module": 105,
        "delete_module": 106,
        "quotactl": 60,
        "kexec_load": 104,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "unshare": 97,
        "perf_event_open": 241,
        "open_by_handle_at": 265,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "memfd_create": 279,
        "bpf": 280,
        "userfaultfd": 282,
        "shmget": 194,
        "semget": 190,
        "msgget": 186,
        "mq_open": 180,
    },
}
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
# Equal on all architectures since Linux 5.1.
_NEWER = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
_CLONE3 = 435

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_AF_UNIX = 1

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_X32_CALLS = 0x40000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in struct seccomp_data."""


def seccomp_filter() -> bytes | None:
    """Return the filter as a classic BPF program for ``bwrap --seccomp``; None on other architectures.

    It refuses debugging of other processes, new namespaces and mounts, kernel modules, BPF, io_uring, memory
    outside of files and of processes (memfd, System V), and sockets that are not AF_UNIX. clone3 is reported
    as missing, because a filter cannot read its flags; the C library then calls clone.
    """
    machine = os.uname().machine
    if machine not in _CALLS:
        return None
    refuse = 0x00050000 | errno.EPERM
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),  # A call of another architecture, such as int 0x80, has other numbers.
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32_CALLS),
        (_RETURN, 0, 0, _KILL),
        (_JUMP_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, 0x00050000 | errno.ENOSYS),
        (_JUMP_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 0, 4, _SOCKET[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for number in sorted({*_CALLS[machine].values(), *_NEWER.values()}):
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *each) for each in program)
