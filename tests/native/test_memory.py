"""A kernel that gets no memory raises, as torch does: halves of the work may fit."""

import subprocess
import sys

import pytest

from egpo.native.library import kernels, why_no_kernels

pytestmark = [
    pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_no_kernels()}"),
    pytest.mark.skipif(sys.platform != "linux", reason="a limit on memory is Linux's"),
]
CODE = """
import resource
import torch
from egpo.local.memory import OUT_OF_MEMORY, is_out_of_memory
from egpo.local.models.packs import GroupLayout, PackLayout
from egpo.local.models.cpu_operations import attend
from egpo.local.sampling.choose import Sampling, choose

torch.set_num_threads(1)
tokens = 100_000
layout = PackLayout((GroupLayout(0, tokens, ()),), torch.device("cpu"))
head = torch.zeros(tokens, 1, 2)
logits, uniform = torch.zeros(1, 20_000_000), torch.zeros(1, dtype=torch.float64)
layout.parts, layout.group_firsts, choose(logits[:, :9], uniform, Sampling())
with open("/proc/self/statm") as sizes:
    used = int(sizes.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)
for work in (lambda: attend(head, head, head, layout, 1.0), lambda: choose(logits, uniform, Sampling())):
    try:
        work()
    except OUT_OF_MEMORY as error:
        print(is_out_of_memory(error), error)
"""


def test_without_memory_they_raise_what_the_engine_knows():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    expected = [f"True not enough memory for the kernel {name}" for name in ("attend_pack", "choose")]
    assert done.stdout.splitlines() == expected, (done.returncode, done.stderr)
