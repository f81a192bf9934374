"""The system calls that no program in the sandbox may make, as a filter for the kernel (classic BPF).

A second line of defence after the namespaces. It denies the calls with which one process reads another, the address
families that a network namespace does not cover (AF_VSOCK reaches the hypervisor), memory that no limit counts, and
parts of the kernel that a program does not need. A denied call fails with EPERM.
"""

import platform
import struct
from functools import cache

_EPERM, _ENOSYS = 1, 38
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_AF_UNIX = 1
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACE = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

# The numbers from pidfd_send_signal (424) on are the same on every architecture.
_COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "process_mrelease": 448,
}  # fmt: skip
_X86_64 = {
    "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "ptrace": 101, "syslog": 103, "personality": 135,
    "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164,
    "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
    "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
    "clock_settime": 227, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
    "unshare": 272, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "memfd_create": 319, "kexec_file_load": 320,
    "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "quotactl": 60, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "acct": 89, "personality": 92,
    "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112,
    "syslog": 116, "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170,
    "adjtimex": 171, "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "shmat": 196, "add_key": 217,
    "request_key": 218, "keyctl": 219, "swapon": 224, "swapoff": 225, "perf_event_open": 241,
    "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
    "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279,
    "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip

# machine: (audit architecture, denied calls, clone, socket, prlimit64)
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64, 56, 41, 302),
    "aarch64": (0xC00000B7, _AARCH64, 220, 198, 261),
}
_CLONE3 = 435

# Calls whose memory a limit on address space does not count: other processes, connections that were not accepted,
# sockets sent through sockets, pages moved into pipes, attributes of files, watches.
_UNCOUNTED = {
    "x86_64": {
        "socket": 41, "sendmsg": 46, "setsockopt": 54, "fork": 57, "vfork": 58, "execve": 59, "setxattr": 188,
        "lsetxattr": 189, "fsetxattr": 190, "io_setup": 206, "remap_file_pages": 216, "inotify_init": 253,
        "splice": 275, "tee": 276, "vmsplice": 278, "inotify_init1": 294, "sendmmsg": 307, "execveat": 322,
        "setxattrat": 463,
    },
    "aarch64": {
        "io_setup": 0, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "inotify_init1": 26, "vmsplice": 75, "splice": 76,
        "tee": 77, "socket": 198, "setsockopt": 208, "sendmsg": 211, "execve": 221, "remap_file_pages": 234,
        "sendmmsg": 269, "execveat": 281, "setxattrat": 463,
    },
}  # fmt: skip
# Calls that are denied for some arguments only. machine: (clone, fcntl, mmap, mremap)
_LOOKED_INTO = {"x86_64": (56, 72, 9, 25), "aarch64": (220, 25, 222, 216)}
_CLONE_THREAD, _F_SETPIPE_SZ, _MREMAP_FIXED_OR_DONTUNMAP = 0x00010000, 1031, 2 | 4
_SECOND_ARGUMENT, _FOURTH_ARGUMENT, _FIRST_ARGUMENT_HIGH = 24, 40, 20
LOWEST_ADDRESS, HIGHEST_ADDRESS = 0xE6B00001, 0xE6B00002
"""Placeholders in a filter for the upper halves of the addresses between which a program may map memory."""

_X32_CALLS_FROM = 0x40000000


@cache
def seccomp_filter(machine: str = "") -> bytes | None:
    """Return the system call filter of all processes in a sandbox, as bytes; None on an unknown architecture."""
    if (machine or platform.machine()) not in _MACHINES:
        return None
    architecture, denied, clone, socket, prlimit = _MACHINES[machine or platform.machine()]
    rules = [
        _step(_LOAD, _ARCHITECTURE),
        # Another architecture's table (32-bit calls on a 64-bit machine) would give every number another meaning.
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _deny(_EPERM),
        _step(_LOAD, _NUMBER),
        _step(_JUMP_ABOVE, _X32_CALLS_FROM, 0, 1),
        _deny(_EPERM),
        # The flags of clone3 are in memory, which a filter cannot read: with ENOSYS, libc calls clone instead.
        *_if_number(_CLONE3, _deny(_ENOSYS)),
        *_if_number(clone, _step(_LOAD, _FIRST_ARGUMENT), _step(_JUMP_BITS, _NEW_NAMESPACE, 0, 1), _deny(_EPERM)),
        *_if_number(socket, _step(_LOAD, _FIRST_ARGUMENT), _step(_JUMP_EQUAL, _AF_UNIX, 1, 0), _deny(_EPERM)),
        *_if_number(prlimit, _step(_LOAD, _FIRST_ARGUMENT), _step(_JUMP_EQUAL, 0, 1, 0), _deny(_EPERM)),
    ]
    for number in sorted({**_COMMON, **denied}.values()):
        rules += [_step(_JUMP_EQUAL, number, 0, 1), _deny(_EPERM)]
    return b"".join([*rules, _step(_RETURN, _ALLOW)])


@cache
def one_process_filter(machine: str = "") -> bytes | None:
    """Return a second filter, for the program alone, so that its address space bounds all memory that it can hold.

    - It cannot start another process; it can start threads.
    - It maps memory within a few gigabytes only: single pages all over the address space would each cost two pages of
      page tables. The process fills in its own addresses (`containment.keep_to_one_process`).
    - Pipes keep their initial size, and only pairs of sockets are allowed.
    """
    machine = machine or platform.machine()
    if machine not in _UNCOUNTED:
        return None
    clone, fcntl, mmap, mremap = _LOOKED_INTO[machine]
    rules = [
        # The first filter has checked the architecture.
        _step(_LOAD, _NUMBER),
        *_if_number(clone, _step(_LOAD, _FIRST_ARGUMENT), _step(_JUMP_BITS, _CLONE_THREAD, 1, 0), _deny(_EPERM)),
        *_if_number(fcntl, _step(_LOAD, _SECOND_ARGUMENT), _step(_JUMP_EQUAL, _F_SETPIPE_SZ, 0, 1), _deny(_EPERM)),
        *_if_number(
            mremap,
            _step(_LOAD, _FOURTH_ARGUMENT),
            _step(_JUMP_BITS, _MREMAP_FIXED_OR_DONTUNMAP, 0, 1),
            _deny(_EPERM),
        ),
        *_if_number(
            mmap,
            _step(_LOAD, _FIRST_ARGUMENT_HIGH),
            _step(_JUMP_EQUAL, 0, 3, 0),
            _step(_JUMP_ABOVE, LOWEST_ADDRESS, 0, 1),
            _step(_JUMP_ABOVE, HIGHEST_ADDRESS, 0, 1),
            _deny(_EPERM),
        ),
    ]
    for number in sorted(_UNCOUNTED[machine].values()):
        rules += [_step(_JUMP_EQUAL, number, 0, 1), _deny(_EPERM)]
    return b"".join([*rules, _step(_RETURN, _ALLOW)])


def _if_number(number: int, *then: bytes) -> list[bytes]:
    """Return filter steps that run the steps `then` for the system call `number`, and skip them for all other calls.

    If `then` is a single step, it must allow or deny the call. After several steps, which may deny it, the call is
    allowed. Later steps run only for other calls, and can still compare the number of the call.
    """
    body = [*then, _step(_RETURN, _ALLOW)] if len(then) > 1 else list(then)
    return [_step(_JUMP_EQUAL, number, 0, len(body)), *body]


def _deny(error: int) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _step(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
