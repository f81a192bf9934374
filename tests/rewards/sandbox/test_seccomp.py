"""The system call filter, as numbers and as the kernel applies it."""

import struct

import pytest

from egpo.rewards.sandbox import Sandbox, SandboxJob, Scripts
from egpo.rewards.sandbox.inside import containment
from egpo.rewards.sandbox.seccomp import HIGHEST_ADDRESS, LOWEST_ADDRESS, one_process_filter, seccomp_filter

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
X86, ARM = 0xC000003E, 0xC00000B7


def apply(machine: str, architecture: int, number: int, *arguments: int, rules=seccomp_filter) -> int:
    """What the kernel would do: an interpreter for the five instructions that the filter uses."""
    program = list(struct.iter_unpack("=HBBI", rules(machine)))
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, operand)
        else:
            test = {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[code]
            at += if_true if test else if_false


@pytest.mark.parametrize(
    ("machine", "architecture", "number", "arguments", "result"),
    [
        ("x86_64", X86, 0, (), ALLOW),  # read
        ("x86_64", X86, 101, (), EPERM),  # ptrace
        ("x86_64", X86, 310, (), EPERM),  # process_vm_readv
        ("x86_64", X86, 438, (), EPERM),  # pidfd_getfd
        ("x86_64", X86, 56, (17,), ALLOW),  # clone as fork
        ("x86_64", X86, 56, (0x10000011,), EPERM),  # clone with a new user namespace
        ("x86_64", X86, 435, (), ENOSYS),  # clone3
        ("x86_64", X86, 41, (1, 1, 0), ALLOW),  # a Unix socket
        ("x86_64", X86, 41, (2, 1, 0), EPERM),  # an internet socket
        ("x86_64", X86, 41, (40, 1, 0), EPERM),  # a hypervisor socket
        ("x86_64", X86, 302, (0, 9), ALLOW),  # its own limits
        ("x86_64", X86, 302, (1, 9), EPERM),  # the supervisor's limits
        ("x86_64", X86, 0x40000000 + 101, (), EPERM),  # the same call by its x32 number
        ("x86_64", 0x40000003, 0, (), EPERM),  # any 32-bit call
        ("aarch64", ARM, 117, (), EPERM),  # ptrace
        ("aarch64", ARM, 63, (), ALLOW),  # read
        ("aarch64", ARM, 198, (2,), EPERM),  # an internet socket
        ("aarch64", ARM, 220, (17,), ALLOW),  # clone as fork
    ],
)
def test_rules(machine: str, architecture: int, number: int, arguments: tuple[int, ...], result: int) -> None:
    assert apply(machine, architecture, number, *arguments) == result


NEAR, FAR = LOWEST_ADDRESS << 32, HIGHEST_ADDRESS << 32


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "result"),
    [
        ("x86_64", 0, (), ALLOW),  # read
        ("x86_64", 57, (), EPERM),  # fork
        ("x86_64", 58, (), EPERM),  # vfork
        ("x86_64", 59, (), EPERM),  # execve
        ("x86_64", 56, (17,), EPERM),  # clone as fork
        ("x86_64", 56, (0x3D0F00,), ALLOW),  # clone as a thread
        ("x86_64", 41, (1, 1, 0), EPERM),  # a Unix socket
        ("x86_64", 53, (1, 1, 0), ALLOW),  # a pair of them
        ("x86_64", 72, (3, 1031, 1 << 20), EPERM),  # a larger pipe
        ("x86_64", 72, (3, 3), ALLOW),  # its flags
        ("x86_64", 278, (), EPERM),  # vmsplice
        ("x86_64", 188, (), EPERM),  # setxattr
        ("x86_64", 25, (0, 0, 0, 1), ALLOW),  # mremap that may move
        ("x86_64", 25, (0, 0, 0, 3), EPERM),  # mremap to an address
        ("x86_64", 9, (0, 4096), ALLOW),  # mmap anywhere
        ("x86_64", 9, (NEAR, 4096), ALLOW),
        ("x86_64", 9, (FAR, 4096), EPERM),
        ("x86_64", 9, (1 << 40, 4096), EPERM),
        ("aarch64", 220, (17,), EPERM),  # clone as fork
        ("aarch64", 222, (1 << 40, 4096), EPERM),  # mmap
        ("aarch64", 25, (3, 1031), EPERM),  # fcntl
        ("aarch64", 216, (0, 0, 0, 2), EPERM),  # mremap
        ("aarch64", 63, (), ALLOW),  # read
    ],
)
def test_rules_of_the_one_process_filter(machine: str, number: int, arguments: tuple[int, ...], result: int) -> None:
    assert apply(machine, 0, number, *arguments, rules=one_process_filter) == result


def test_both_sides_know_the_same_marks() -> None:
    ours = (containment.LOWEST_ADDRESS, containment.HIGHEST_ADDRESS)
    assert ours == (LOWEST_ADDRESS, HIGHEST_ADDRESS)


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp_filter("pdp11") is None
    assert one_process_filter("pdp11") is None


def test_the_kernel_applies_it(sandbox: Sandbox) -> None:
    program = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for call in (lambda: libc.memfd_create(b'x', 0), lambda: libc.shmget(0, 4096, 0o1600), lambda: libc.unshare(0x20000)):
    print(call(), ctypes.get_errno())
"""
    (outcome,) = sandbox.run(SandboxJob(program, Scripts((b"",)))).outcomes
    assert outcome.output == b"-1 1\n" * 3
