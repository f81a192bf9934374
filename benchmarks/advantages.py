"""Time advantages and segment masks, compared with a plain loop over groups and with a lower limit.

    python benchmarks/advantages.py [--rounds 9] [--device cuda]

The job is verl's: token-level rewards in, token-level advantages out. The limit is what every estimator must do: sum
the rewards over tokens, and broadcast one number per row over the mask. The limit of segment masks is one read of the
ids and one write of the two masks.
"""

import argparse

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from egpo.advantages import ESTIMATORS, Signals, over_tokens
from egpo.segments import mean_over, segment_masks
from interleaved import time_interleaved

SHAPES = [(1024, 1024), (8192, 1024), (8192, 4096)]
GROUP = 8


def loop_over_groups(reward_BT, group_B, mask_BT):
    """Compute GRPO's advantages by a plain loop over groups."""
    score_B = reward_BT.sum(-1)
    advantage_B = torch.zeros_like(score_B)
    for group in group_B.unique():
        rows = group_B == group
        scores = score_B[rows]
        if len(scores) > 1:
            advantage_B[rows] = (scores - scores.mean()) / (scores.std() + 1e-6)
        else:
            advantage_B[rows] = scores
    return advantage_B.unsqueeze(-1) * mask_BT


def loop_over_rows(reward_BT, group_B, mask_BT):
    """Compute GRPO's advantages as verl 0.9 does: with a dictionary of lists, filled and read one row at a time."""
    score_B = reward_BT.sum(-1)
    scores_of: dict[int, list] = {}
    groups = group_B.tolist()
    for row, group in enumerate(groups):
        scores_of.setdefault(group, []).append(score_B[row])
    mean_of = {group: torch.stack(scores).mean() for group, scores in scores_of.items()}
    std_of = {group: torch.stack(scores).std() for group, scores in scores_of.items()}
    advantage_B = score_B.clone()
    for row, group in enumerate(groups):
        advantage_B[row] = (advantage_B[row] - mean_of[group]) / (std_of[group] + 1e-6)
    return advantage_B.unsqueeze(-1) * mask_BT


def estimated(name, batch):
    reward_B = batch["reward_BT"].sum(-1)
    signals = Signals(reward_B, batch["group_B"], batch["entropy_B"], correct_B=reward_B > 0)
    if ESTIMATORS[name].level == "token":
        return ESTIMATORS[name](signals, batch["entropy_BT"], batch["mask_BT"].bool())
    return over_tokens(ESTIMATORS[name](signals), batch["mask_BT"])


def tokenizer_of(size):
    """Return a tokenizer with enough words for the ids, and one token per tag as in Qwen3."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size - 2)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def make_batch(rows, tokens, tokenizer, device):
    generator = torch.Generator().manual_seed(0)
    length_B = torch.randint(tokens // 4, tokens, (rows,), generator=generator)
    mask_BT = torch.arange(tokens) < length_B.unsqueeze(1)
    response_BT = torch.randint(len(tokenizer) - 2, (rows, tokens), generator=generator)
    response_BT[torch.arange(rows), length_B * 3 // 4] = tokenizer.convert_tokens_to_ids("</think>")
    reward_BT = torch.zeros(rows, tokens)
    reward_BT[torch.arange(rows), length_B - 1] = torch.randint(2, (rows,), generator=generator).float()
    group_B = torch.arange(rows)[torch.randperm(rows, generator=generator)] // GROUP
    entropy_BT = torch.rand(rows, tokens, generator=generator)
    batch = {"reward_BT": reward_BT, "group_B": group_B, "mask_BT": mask_BT.float(), "response_BT": response_BT,
             "entropy_BT": entropy_BT, "entropy_B": torch.rand(rows, generator=generator)}  # fmt: skip
    return {name: value.to(device) for name, value in batch.items()}


def contenders_for(batch, tokenizer):
    mask_BT, on_BT = batch["mask_BT"], batch["mask_BT"].bool()
    loop_inputs = batch["reward_BT"], batch["group_B"], mask_BT
    return {
        "limit": lambda: batch["reward_BT"].sum(-1).unsqueeze(-1) * mask_BT,
        **{name: (lambda name=name: estimated(name, batch)) for name in ESTIMATORS},
        "loop over groups": lambda: loop_over_groups(*loop_inputs),
        "loop over rows": lambda: loop_over_rows(*loop_inputs),
        "masks limit": lambda: (batch["response_BT"] > 7, on_BT & on_BT),
        "segment_masks": lambda: segment_masks(batch["response_BT"], on_BT, tokenizer),
        "mean_over": lambda: mean_over(batch["entropy_BT"], on_BT),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    tokenizer = tokenizer_of(32_768)
    for rows, tokens in SHAPES:
        batch = make_batch(rows, tokens, tokenizer, arguments.device)
        settle = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
        timings = time_interleaved(contenders_for(batch, tokenizer), arguments.rounds, settle)
        table = Table(title=f"{rows} x {tokens}, groups of {GROUP}, {arguments.device}", title_justify="left")
        for heading in ("", "ms", "times the limit", "loop over groups takes"):
            table.add_column(heading, justify="left" if not heading else "right")
        for name, timing in timings.items():
            limit = timings["masks limit" if name in {"segment_masks", "masks limit", "mean_over"} else "limit"]
            against = str(timings["loop over groups"].over(timing)) if name in ESTIMATORS else ""
            table.add_row(name, f"{timing.median_s * 1e3:.2f}", str(timing.over(limit)), against)
        Console().print(table)


if __name__ == "__main__":
    main()
