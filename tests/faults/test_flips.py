"""A flipped byte in every file that is read: refused with one line that names the file, or shown to be harmless.

`EGPO_TEST_FLIPS=4096 pytest tests/faults/test_flips.py` tries every byte of files of up to 4,096 bytes.
"""

import json
import os
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.evals.targets import local_targets
from egpo.fingerprints import (
    SEAL,
    sealed,
    sealed_line,
    unsealed,
    unsealed_line,
)
from egpo.runs.json_lines import encoded
from tests.faults.flips import try_all
from tests.faults.scene import NOT_DETECTED, Scene, comparison, groups, page

MOST = int(os.environ.get("EGPO_TEST_FLIPS", "0"))
MANY, FEW = (None, 300) if MOST else (12, 3)
"""Damages that are tried of a file, and of one that a slow verb reads."""
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text().filter(lambda key: key not in (SEAL, "line_sha256")), JSON, min_size=1, max_size=4)


@given(OBJECTS)
def test_a_seal_comes_off_again(value):
    plain = json.loads(json.dumps(value))
    assert unsealed(json.loads(json.dumps(sealed(value)))) == plain
    line = encoded(value)
    assert json.loads(unsealed_line(line)) == plain


@given(OBJECTS, st.data())
def test_no_changed_byte_of_a_sealed_line_is_read(value, data):
    """Whichever byte is changed to whatever else, the reader refuses or, where the seal's own key is hit, sees it."""
    line = encoded(value)
    place = data.draw(st.integers(0, len(line) - 2))
    changed = bytearray(line)
    changed[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (line[place], ord("\n"))))
    try:
        assert json.loads(unsealed_line(bytes(changed))) != json.loads(unsealed_line(line))
        assert b"line_sha256" not in changed  # the key itself was hit: the values before it are whole
        assert {**json.loads(changed), **value} == json.loads(changed)
    except ValueError:
        pass


def test_older_files_have_no_seal():
    assert unsealed({"a": 1}) == {"a": 1}
    assert unsealed_line(b'{"a": 1}\n') == b'{"a": 1}\n'
    assert sealed_line(b"{}\n") == b"{}\n"


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    before = os.environ.get("XDG_CACHE_HOME")
    yield Scene(tmp_path_factory.mktemp("scene"))
    os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(3600 if MOST else 240)
@pytest.mark.parametrize("group", groups, ids=lambda group: group.__name__)
def test_every_damage_is_refused_or_harmless(scene, group):
    tried = 0
    for reading in group(scene):
        found = try_all(reading, MOST or 64, FEW if reading.slow else MANY)
        allowed = {"refused", "same", *(["silent"] if reading.name in NOT_DETECTED else [])}
        assert set(found.counts) <= allowed, (reading.name, found.counts, found.examples)
        tried += found.num_tried
    assert tried


@contextmanager
def changed(path, old, new):
    """The file with one byte changed, in the block."""
    content = path.read_bytes()
    assert old in content
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new, 1))
    try:
        yield
    finally:
        path.write_bytes(content)


def test_a_changed_digit_of_the_metrics_is_not_drawn(scene):
    said = pytest.raises(InputError, match=r"metrics\.jsonl, line 2: the line was changed after it was written")
    with changed(scene.run.metrics, b'"critic/score/mean": 0', b'"critic/score/mean": 1'), said:
        page(scene.run.path)


def test_metrics_that_end_before_a_checkpoint_are_not_drawn(scene):
    """A file that was cut off once was a run that is not finished."""
    content = scene.run.metrics.read_bytes()
    scene.run.metrics.write_bytes(content[:-1])
    try:
        with pytest.raises(InputError, match="the file ends at step 3, but there is a checkpoint of step 4"):
            page(scene.run.path)
    finally:
        scene.run.metrics.write_bytes(content)


def test_a_changed_verdict_of_an_evaluation_is_not_compared(scene):
    path = next(scene.run.evals.glob("*.jsonl"))
    with changed(path, b'"sample": 0', b'"sample": 9'), pytest.raises(InputError, match="line 1: the line was changed"):
        comparison(scene)


def test_an_evaluation_that_lost_lines_is_not_compared(scene):
    path = next(scene.run.evals.glob("*.jsonl"))
    content = path.read_bytes()
    path.write_bytes(content[: content[:-1].rindex(b"\n") + 1])
    try:
        with pytest.raises(InputError, match="the file has 5 responses, but 6 were written"):
            comparison(scene)
    finally:
        path.write_bytes(content)


def test_a_checkpoint_with_a_changed_weight_is_not_evaluated(scene):
    path = scene.step / "huggingface" / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    try:
        target = local_targets([str(scene.run.path)], "4", device="cpu")[0]
        with (
            pytest.raises(InputError, match=r"model\.safetensors: the file was changed after it was written"),
            target.opened(),
        ):
            pass
    finally:
        path.write_bytes(content)
