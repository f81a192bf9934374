"""The chat templates of many model families, as TRL's wheel has them: fetched by its digest, never committed."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

from egpo.files import cache_folder

WHEEL = "trl-1.16.0-py3-none-any.whl"
SHA256 = "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396"
_PIP = ("-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet")


def template(name):
    """Return the text of a template. The test is skipped if the wheel is not here and cannot be fetched."""
    wheel = _wheel()
    if wheel is None:
        pytest.skip(f"{WHEEL} is not in the cache, and cannot be fetched from the package index")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"trl/chat_templates/{name}.jinja").decode()


@cache
def _wheel():
    wheels = cache_folder() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    if not (wheels / WHEEL).is_file():
        with tempfile.TemporaryDirectory(dir=wheels) as scratch:
            command = [sys.executable, *_PIP, "--dest", scratch, "trl==1.16.0"]
            subprocess.run(command, capture_output=True, timeout=300)
            found = Path(scratch, WHEEL)
            if not found.is_file():
                return None
            found.rename(wheels / WHEEL)
    assert hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest() == SHA256, f"{wheels / WHEEL} is another wheel"
    return wheels / WHEEL
