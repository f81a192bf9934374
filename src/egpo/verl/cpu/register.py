"""Registers the CPU platform and its patches. Every process of verl imports it (VERL_USE_EXTERNAL_MODULES).

A patch is applied when verl or vLLM imports its module. So no process imports additional modules, and a
process that never imports verl (a plain `vllm serve`) is not changed.
"""

from egpo.verl.cpu.patches import PATCHES, report_vllm_version
from egpo.verl.cpu.platform import register_platform
from egpo.verl.imports import when_imported

register_platform()
report_vllm_version()
for _name, _patch in PATCHES.items():
    when_imported(_name, _patch.apply)
