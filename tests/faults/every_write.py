"""`python -m tests.faults.every_write crash|refuse [WORKLOAD ...]`: the tables of docs/reliability.md, measured.

Recordings are kept in one place for both: a folder in memory where there is one, because restarts sync often.
"""

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from tests.faults.crashes import crash, recorded
from tests.faults.refusals import FAULTS, build, count_calls, refuse
from tests.faults.server import Server
from tests.faults.workloads import WORKLOADS, environment, make_inputs


@contextmanager
def opened():
    """Yield a folder with the inputs of all workloads, and a server that can refuse calls."""
    memory = Path("/dev/shm")
    held = memory if os.access(memory, os.W_OK) else None
    place = Path(tempfile.mkdtemp(prefix="egpo-faults-", dir=held))
    try:
        make_inputs(place / "inputs")
        with Server(**environment(place / "inputs"), LD_PRELOAD=str(build(place))) as server:
            yield place, server
    finally:
        shutil.rmtree(place)


@contextmanager
def recording(name, place):
    """Yield the folder of a workload, its recorded crashes, and the files that it promises."""
    here = place / name.replace(" ", "_")
    try:
        yield here, *recorded(name, WORKLOADS[name], here, place / "inputs")
    finally:
        shutil.rmtree(here)


def crash_all(name, place, server, most=None, seconds=None):
    """Start a workload again on `most` of its states, evenly drawn (all by default)."""
    with recording(name, place) as (here, crashes, expected):
        chosen = drawn(crashes.states, most)
        deadline = None if seconds is None else time.monotonic() + seconds
        crash(crashes, WORKLOADS[name], here, place / "inputs", expected, server, chosen, deadline)
        return crashes


def refuse_all(name, faults, place, server, most=None, seconds=None):
    """Refuse `most` calls of a workload for each fault, evenly drawn (all by default)."""
    found = []
    with recording(name, place) as (here, crashes, expected):
        workload, start = WORKLOADS[name], crashes.states[0]
        for fault in faults:
            refusals = count_calls(name, fault, workload, start, here, place / "inputs", server)
            chosen = drawn(range(1, refusals.num_calls + 1), most)
            deadline = None if seconds is None else time.monotonic() + seconds
            refuse(refusals, workload, start, here, place / "inputs", expected, server, chosen, deadline)
            found.append(refusals)
    return found


def drawn(values, most):
    """The values in a random order that is always the same, so that a time limit leaves an even selection."""
    values = list(values)
    random.Random(0).shuffle(values)
    return values if most is None else values[:most]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["crash", "refuse"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--most", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    limits = {"most": options.most, "seconds": options.seconds}
    with opened() as (place, server):
        for name in options.names or WORKLOADS:
            if options.what == "crash":
                _report(crash_all(name, place, server, **limits), options.json)
            else:
                for refusals in refuse_all(name, FAULTS, place, server, **limits):
                    _report(refusals, options.json)


def _report(found, file):
    print(found.row(), f"in {found.seconds:.0f} s", flush=True)
    notes = getattr(found, "refusals", None) or getattr(found, "messages", {})
    for said, count in notes.most_common() if notes else ():
        print(f"  {count} times: {said}", flush=True)
    if file:
        with file.open("a") as lines:
            print(json.dumps({"row": found.row(), "notes": notes, "failures": found.failures}), file=lines)


if __name__ == "__main__":
    main()
