"""The system call filter, as numbers and as the kernel applies it."""

import struct

import pytest

from egpo.rewards.sandbox import Job, Sandbox, Scripts
from egpo.rewards.sandbox.seccomp import seccomp_filter

ALLOW, EPERM, ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
X86, ARM = 0xC000003E, 0xC00000B7


def apply(machine: str, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would do: an interpreter for the five instructions that the filter uses."""
    program = list(struct.iter_unpack("=HBBI", seccomp_filter(machine)))
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


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp_filter("pdp11") is None


def test_the_kernel_applies_it(sandbox: Sandbox) -> None:
    program = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for call in (lambda: libc.memfd_create(b'x', 0), lambda: libc.shmget(0, 4096, 0o1600), lambda: libc.unshare(0x20000)):
    print(call(), ctypes.get_errno())
"""
    (outcome,) = sandbox.run(Job(program, Scripts((b"",)))).outcomes
    assert outcome.output == b"-1 1\n" * 3
