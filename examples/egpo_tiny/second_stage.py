"""Teaches egpo-tiny episodes, in one command, and writes the model folder that the package holds:

    python -m examples.egpo_tiny.second_stage --first FIRST --out data/egpo-tiny-second
    python -m examples.egpo_tiny.compare FIRST data/egpo-tiny-second/model --out data/egpo-tiny-comparison

FIRST is the model folder of the first stage, which `egpo sft examples/egpo_tiny/sft.yaml` prints at its end; the model
of the package has learned both stages. The command draws the corpus of the second stage, trains on it
(`second_stage.yaml`) and writes `model/`: the files of the package with new weights. A finished part is not repeated,
and an interrupted training continues at its last checkpoint. With `--from-scratch` the weights are drawn anew and learn
both stages together.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo import sft
from egpo.assets import resolve_model
from examples.egpo_tiny.corpus import write_corpus
from examples.egpo_tiny.make import CONVERSATIONS, HELD_OUT, SEEDS

RECIPE = Path(__file__).with_name("second_stage.yaml")
FROM_SCRATCH = {"model.init": "random", "epochs": 4, "update.lr": 0.002}
"""Settings without the weights of the first stage. Its tokenizer and its config are kept."""
LARGEST_BYTES = 12_000_000


def draw_corpus(folder: Path, conversations: int) -> None:
    for name, count, seed in (("corpus", conversations, SEEDS["second"]), ("held_out", HELD_OUT, SEEDS["second"] + 1)):
        if not (folder / f"{name}.jsonl").is_file():
            write_corpus(folder / f"{name}.jsonl", count, seed, "second")


def train(folder: Path, settings: dict[str, Any]) -> Path:
    """Train, or continue, and return the folder of the trained model."""
    paths = {
        "runs": str(folder / "runs"),
        "data.path": str(folder / "corpus.jsonl"),
        "data.eval_path": str(folder / "held_out.jsonl"),
    }
    run = folder / "runs" / yaml.safe_load(RECIPE.read_text())["name"]
    result = sft(str(RECIPE), {**paths, **settings}, resume=(run / "config.yaml").is_file())
    return result.model


def write_model(trained: Path, folder: Path) -> None:
    """Write the files of the package's model with the trained weights in bfloat16. ValueError if the package cannot
    hold them."""
    package = Path(resolve_model("egpo-tiny"))
    before, after = (AutoTokenizer.from_pretrained(place).get_vocab() for place in (package, trained))
    if before != after:
        raise ValueError("the tokenizer has changed")
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.bfloat16)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    for file in package.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, unfinished)
    num_bytes = sum(file.stat().st_size for file in unfinished.iterdir())
    if num_bytes > LARGEST_BYTES:
        raise ValueError(f"the model has {num_bytes:,} bytes, more than {LARGEST_BYTES:,}")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--first", metavar="MODEL", help="model folder of the first stage, from whose weights to start")
    start.add_argument("--from-scratch", action="store_true", help="draw the weights anew instead")
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS["second"])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of second_stage.yaml")
    given = parser.parse_args()
    chosen = dict(word.split("=", 1) for word in given.set)
    start_settings = FROM_SCRATCH if given.from_scratch else {"model.path": given.first}
    settings = {**start_settings, **{key: json.loads(chosen[key]) for key in chosen}}
    draw_corpus(given.out, given.conversations)
    write_model(train(given.out, settings), given.out / "model")
    print(f"model: {given.out / 'model'}")


if __name__ == "__main__":
    main()
