"""verl's rewards behind a pipe, for benchmarks/rewards.py; run by the Python of `environments/verl-rewards`.

A line of JSON comes in: {"reward": name, "pairs": [[response, ground truth], …]} to load a batch, which is answered by
verl's scores of it, or {"run": index} to score a loaded batch once more, answered when it is done.

The packages `verl`, `verl.utils` and `verl.utils.reward_score` are stood in for by empty ones with the same path, so
that the reward modules are verl's own and what their packages import besides (ray, torch) is not needed. At the top of
the file, because verl's math-verify reward starts processes that import it again.
"""

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_ROOT = Path(find_spec("verl").origin).parent
for _name in ("verl", "verl.utils", "verl.utils.reward_score"):
    _package = ModuleType(_name)
    _package.__path__ = [str(_ROOT.joinpath(*_name.split(".")[1:]))]
    sys.modules[_name] = _package


def score(reward: str, pairs: list[list[str]]) -> list[float]:
    compute_score = import_module(f"verl.utils.reward_score.{reward}").compute_score
    results = [compute_score(response, truth) for response, truth in pairs]
    return [float(result["score"] if isinstance(result, dict) else result) for result in results]


def main() -> None:
    replies, batches = sys.stdout, []
    sys.stdout = sys.stderr  # some of the rewards print
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            score(*batches[request["run"]])
            reply = True
        else:
            batches.append((request["reward"], request["pairs"]))
            reply = score(*batches[-1])
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
