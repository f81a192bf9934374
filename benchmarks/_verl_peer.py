"""verl's rewards behind a pipe, for benchmarks/rewards.py; run by the Python of `environments/verl-rewards`.

Input: lines of JSON. {"reward": name, "pairs": [[response, ground truth], …]} loads a batch; the reply is verl's
scores. {"run": index} scores a loaded batch again; the reply comes when it is done.

The packages `verl`, `verl.utils` and `verl.utils.reward_score` are replaced by empty ones with the same path: the
reward modules are verl's own, but the other imports of their packages (ray, torch) are not needed. This is done at the
top of the file because verl's math-verify reward starts processes that import it again.
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
