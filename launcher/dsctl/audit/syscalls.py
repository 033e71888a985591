"""System calls that the engine's container must be refused, as its probe tries them.

x86-64 numbers (`arch/x86/entry/syscalls/syscall_64.tbl` of Linux), with arguments that a kernel
which allows the call still refuses to act on: bad addresses, descriptors, magic numbers.
"""

from __future__ import annotations

from typing import Any

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PTRACE_ATTACH = 16
_PTRACE_SEIZE = 0x4206

FORBIDDEN: dict[str, dict[str, Any]] = {
    "sys.module": {
        "promise": "no kernel module can be loaded",
        "calls": {"init_module": (175, 0, 0, 0), "finit_module": (313, -1, 0, 0)},
    },
    "sys.mount": {
        "promise": "nothing can be mounted, and the root stays the root",
        "calls": {
            "mount": (165, 0, 0, 0, 0, 0),
            "umount2": (166, 0, 0),
            "pivot_root": (155, 0, 0),
            "chroot": (161, 0),
            "open_tree": (428, -1, 0, 0),
            "move_mount": (429, -1, 0, -1, 0, 0),
            "fsopen": (430, 0, 0),
        },
    },
    "sys.namespaces": {
        "promise": "no namespace can be made or entered",
        "calls": {
            "unshare(CLONE_NEWUSER)": (272, _CLONE_NEWUSER),
            "unshare(CLONE_NEWNET)": (272, _CLONE_NEWNET),
            "setns": (308, -1, 0),
        },
    },
    "sys.kernel": {
        "promise": "no door into the kernel is open (BPF, perf, io_uring, keys, clocks, kexec)",
        "calls": {
            "bpf": (321, 0, 0, 0),
            "perf_event_open": (298, 0, 0, -1, -1, 0),
            "userfaultfd": (323, 0),
            "io_uring_setup": (425, 0, 0),
            "kexec_load": (246, 0, 0, 0, 0),
            "reboot": (169, 0, 0, 0, 0),
            "swapon": (167, 0, 0),
            "acct": (163, 1),
            "add_key": (248, 0, 0, 0, 0, 0),
            "keyctl": (250, -1, 0, 0, 0, 0),
            "open_by_handle_at": (304, -1, 0, 0),
            "settimeofday": (164, 0, 1),
            "iopl": (172, 3),
            "quotactl": (179, 0, 0, 0, 0),
            "syslog": (103, 3, 0, 0),
        },
    },
    "sys.ptrace": {
        "promise": "no process can be traced, read or written",
        "calls": {
            "ptrace(TRACEME)": (101, 0, 0, 0, 0),
            "ptrace(ATTACH, 1)": (101, _PTRACE_ATTACH, 1, 0, 0),
            "ptrace(SEIZE, 1)": (101, _PTRACE_SEIZE, 1, 0, 0),
            "process_vm_readv(1)": (310, 1, 0, 0, 0, 0, 0),
            "process_vm_writev(1)": (311, 1, 0, 0, 0, 0, 0),
        },
    },
}
