"""Measure what padding costs verl's trainer where flash-attn is not installed: padded batches beside packed ones.

    make verl
    python benchmarks/verl_padding.py [--rounds 4] [--rows 64] [--model FOLDER]
    python benchmarks/verl_padding.py --device cuda --python PYTHON      on a GPU, with the interpreter that has verl

verl's own training worker in one process, without Ray and vLLM: log-probabilities of all responses, then one optimizer
step, in turn with `sdpa` on padded batches and with `egpo_packed` (`egpo.verl.packed_attention`) on the same rows.
Passes hold 2,048 real tokens on a CPU, 16,384 on a GPU. On a GPU in bfloat16; on a CPU in float32, in processor seconds
of one thread.
"""

import argparse
import os
import random
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from egpo.support import PACKED_ATTENTION  # noqa: E402
from interleaved import time_interleaved  # noqa: E402
from tests.verl import verl_worker  # noqa: E402

ATTENTIONS = {"padded": ("sdpa", False), "packed": (PACKED_ATTENTION, True)}
PROMPT = 32
LENGTHS = {"equal, 192": (192, 192), "96 to 288": (96, 288), "24 to 360": (24, 360)}
"""Shortest and longest response, in tokens. The mean is the same."""


def rows_of(shortest, longest, count, vocabulary):
    import torch

    drawn, lengths = random.Random(0), [shortest, longest]
    lengths += [drawn.randint(shortest, longest) for _ in range(count - 2)]
    generator = torch.Generator().manual_seed(0)
    rows = []
    for place, length in enumerate(lengths):
        tokens = torch.randint(vocabulary, (PROMPT + length,), generator=generator)
        mask = torch.ones(length, dtype=torch.long)
        rows.append({"prompts": tokens[:PROMPT], "responses": tokens[PROMPT:], "input_ids": tokens,
                     "advantages": torch.full((length,), 1.0 if place % 2 else -1.0),
                     "position_ids": torch.arange(len(tokens)), "response_mask": mask, "loss_mask": mask})  # fmt: skip
    return verl_worker.jagged_batch(rows)


def worker_of(options, attention):
    from verl.workers.engine_workers import ActorRolloutRefWorker

    implementation, packs = ATTENTIONS[attention]
    actor, rollout, model = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
    tokens = 2_048 if options.device == "cpu" else 16_384
    config = verl_worker.config_of(
        {
            **(verl_worker.BFLOAT16 if options.device == "cuda" else {}),
            **({f"{model}.path": options.model} if options.model else {}),
            f"+{model}.override_config.attn_implementation": implementation,
            f"{model}.use_remove_padding": packs,
            f"{actor}.use_dynamic_bsz": True,
            f"{actor}.ppo_max_token_len_per_gpu": tokens,
            f"{rollout}.log_prob_use_dynamic_bsz": True,
            f"{rollout}.log_prob_max_token_len_per_gpu": tokens,
            f"{rollout}.n": 1,
            f"{actor}.ppo_mini_batch_size": options.rows,
            "data.train_batch_size": options.rows,
            "trainer.device": options.device,
        }
    )
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker, config.actor_rollout_ref


def steps_of(workers, batch, old_logp):
    for attention, (worker, section) in workers.items():

        def logp(worker=worker, section=section):
            return verl_worker.logp_of(worker.compute_log_prob, batch, section)

        def update(worker=worker, section=section):
            return verl_worker.update(worker, batch, section)

        yield f"log-probabilities, {attention}", logp
        yield f"update, {attention}", update
        batch["old_log_probs"] = old_logp if old_logp is not None else logp()


def measure(options):
    import torch

    verl_worker.begin_process(options.device)
    workers = {name: worker_of(options, name) for name in ATTENTIONS}
    vocabulary = next(iter(workers.values()))[0].actor.engine.model_config.hf_config.vocab_size
    on_gpu = options.device == "cuda"
    settle, clock = (torch.cuda.synchronize, time.perf_counter) if on_gpu else (lambda: None, time.process_time)
    table = Table("responses, tokens", "stage", "padded, s", "packed, s", "padded takes, times", "padded tokens, times")
    for label, (shortest, longest) in LENGTHS.items():
        batch = rows_of(shortest, longest, options.rows, vocabulary)
        found = time_interleaved(dict(steps_of(workers, batch, None)), options.rounds, settle, clock=clock)
        sizes = batch["input_ids"].offsets().diff()
        waste = f"up to {int(sizes.max()) * len(sizes) / int(sizes.sum()):.2f}"
        for stage in ("log-probabilities", "update"):
            padded, packed = (found[f"{stage}, {attention}"] for attention in ATTENTIONS)
            table.add_row(
                label, stage, f"{padded.median_s:.2f}", f"{packed.median_s:.2f}", str(padded.over(packed)), waste
            )
    Console(width=110).print(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--model", help="model folder; default: egpo-tiny")
    parser.add_argument("--python", default=str(HERE.parent / ".env-verl" / "bin" / "python"))
    options = parser.parse_args()
    if os.environ.get("EGPO_PADDING_INSIDE"):
        measure(options)
        return
    if not Path(options.python).exists():
        sys.exit(f"{options.python} is missing; run: make verl")
    environment = os.environ | verl_worker.ENVIRONMENTS[options.device] | {"EGPO_PADDING_INSIDE": "1"}
    os.execve(options.python, [options.python, __file__, *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
