"""The whole algorithm in one file of plain torch and transformers: sample, judge, segments, advantages, update.

    python examples/one_file_egpo.py --estimator egpo          # Countdown with egpo-tiny

For reading and for changing. `egpo train` computes the same update, and also validates, resumes and records;
tests/test_one_file.py compares the two.

Tensor suffixes: P problems, G samples per problem, B = P * G rows (row b answers problem b // G), L prompt tokens
(padded on the left), T response tokens (padded on the right), V vocabulary.
"""

import argparse
import ast
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@dataclass(frozen=True)
class Problem:
    numbers: tuple[int, ...]
    target: int

    @property
    def prompt(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"Make {self.target} from {list(self.numbers)}."}]


def draw_problem(rng: random.Random) -> Problem:
    """Draw three numbers, and as the target the value of a random expression over them: every problem is solvable."""
    while True:
        numbers = [rng.randint(1, 12) for _ in range(3)]
        a, b, c = rng.sample(numbers, 3)
        first, second = rng.choices("+-*/", k=2)
        value = value_of(rng.choice([f"({a}{first}{b}){second}{c}", f"{c}{second}({a}{first}{b})"]))
        if value is not None and value.denominator == 1 and 1 <= value <= 60:
            return Problem(tuple(numbers), int(value))


def judge(problem: Problem, text: str) -> float:
    """Return 1.0 if the last <answer> uses every number once and has the target as its value, else 0.0."""
    thinking, closed, answer = text.partition("</think>")
    if not closed:
        answer = "" if "<think>" in thinking else text
    expression = (re.findall(r"<answer>([^<]{1,100})</answer>", answer) or [""])[-1]
    used = sorted(map(int, re.findall(r"\d+", expression)))
    return float(used == sorted(problem.numbers) and value_of(expression) == problem.target)


def value_of(expression: str) -> Fraction | None:
    """Compute + - * / and parentheses over whole numbers exactly; None for anything else a model may write."""

    def compute(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](compute(node.left), compute(node.right))
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Fraction(node.value)
        raise ValueError("not arithmetic")

    try:
        return compute(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Sampled responses. `logp_BT` and `entropy_BT` are those of the distribution that was sampled from."""

    prompt_BL: Tensor
    prompt_mask_BL: Tensor
    response_BT: Tensor
    mask_BT: Tensor
    logp_BT: Tensor
    entropy_BT: Tensor


def token_stats(logits_BTV: Tensor, token_BT: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log p(token) and the exact entropy -sum_v p_v log p_v in nats, over the full vocabulary."""
    logp_BTV = torch.log_softmax(logits_BTV.float() / temperature, dim=-1)
    entropy_BT = torch.special.entr(logp_BTV.detach().exp()).sum(-1)
    return logp_BTV.gather(-1, token_BT.unsqueeze(-1)).squeeze(-1), entropy_BT


@torch.no_grad()
def sample(model, tokenizer, problems: list[Problem], n: int, max_tokens: int, temperature: float) -> Rollouts:
    """Sample n responses to each problem, one token of every row at a time, until all rows have ended."""
    texts = [tokenizer.apply_chat_template(p.prompt, tokenize=False, add_generation_prompt=True) for p in problems]
    encoded = tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
    prompt_BL = encoded.input_ids.repeat_interleave(n, 0).to(model.device)
    prompt_mask_BL = encoded.attention_mask.repeat_interleave(n, 0).to(model.device)

    input_BT, seen_BT, cache = prompt_BL, prompt_mask_BL, None
    alive_B = torch.ones(len(prompt_BL), dtype=torch.bool, device=model.device)
    columns: list[tuple[Tensor, ...]] = []
    while len(columns) < max_tokens and bool(alive_B.any()):
        position_BT = (seen_BT.cumsum(-1) - 1).clamp(min=0)[:, -input_BT.shape[1] :]
        out = model(input_BT, attention_mask=seen_BT, position_ids=position_BT, past_key_values=cache, use_cache=True)
        logits_B1V, cache = out.logits[:, -1:], out.past_key_values
        input_BT = torch.multinomial((logits_B1V[:, 0].float() / temperature).softmax(-1), num_samples=1)
        logp_B1, entropy_B1 = token_stats(logits_B1V, input_BT, temperature)
        columns.append((input_BT, alive_B.unsqueeze(1), logp_B1, entropy_B1))
        alive_B = alive_B & (input_BT[:, 0] != tokenizer.eos_token_id)  # the end token belongs to the response
        seen_BT = torch.cat([seen_BT, torch.ones_like(input_BT)], dim=1)
    response_BT, mask_BT, logp_BT, entropy_BT = (torch.cat(column, dim=1) for column in zip(*columns, strict=True))
    return Rollouts(prompt_BL, prompt_mask_BL, response_BT, mask_BT, logp_BT, entropy_BT)


def response_texts(tokenizer, rollouts: Rollouts) -> list[str]:
    rows = zip(rollouts.response_BT, rollouts.mask_BT, strict=True)
    return [tokenizer.decode(token_T[mask_T], skip_special_tokens=True) for token_T, mask_T in rows]


def segment_entropy(tokenizer, rollouts: Rollouts, segment: str, tags=("<think>", "</think>")) -> Tensor:
    """Return the mean entropy of each response's thinking, answer or whole response; NaN if the segment is empty."""
    mask_BT = rollouts.mask_BT
    if segment != "response":
        thinking_BT, answer_BT = split_responses(tokenizer, rollouts, tags)
        mask_BT = thinking_BT if segment == "thinking" else answer_BT
    return rollouts.entropy_BT.where(mask_BT, 0.0).sum(1) / mask_BT.sum(1)


def split_responses(tokenizer, rollouts: Rollouts, tags: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """Return masks of thinking and answer.

    Thinking ends with the first closing tag. It begins after an opening tag before that, or else with the response. A
    response without any tag is all answer; one that was cut off before the closing tag has no answer.
    """
    thinking_BT, answer_BT = torch.zeros_like(rollouts.mask_BT), torch.zeros_like(rollouts.mask_BT)
    for row, length in enumerate(rollouts.mask_BT.sum(1).tolist()):
        ids = rollouts.response_BT[row, :length].tolist()
        closes = _end_of(tags[1], ids, tokenizer)
        opens = _end_of(tags[0], ids[:closes], tokenizer)
        answers = closes if closes is not None else 0 if opens is None else length
        thinking_BT[row, (opens or 0) : answers] = True
        answer_BT[row, answers:length] = True
    return thinking_BT, answer_BT


def _end_of(tag: str, ids: list[int], tokenizer) -> int | None:
    """Return how many tokens are needed to spell the first tag (it may span tokens); None if there is none."""
    if tag not in tokenizer.decode(ids):
        return None
    return next(count for count in range(1, len(ids) + 1) if tag in tokenizer.decode(ids[:count]))


SAME = 8 * torch.finfo(torch.float32).eps  # rewards that differ by rounding count as equal


def grpo(reward_PG: Tensor, entropy_PG: Tensor | None = None) -> Tensor:
    """A = (r - mean_g) / (std_g + 1e-6), and exactly 0 for a group whose rewards are all equal (arXiv:2402.03300)."""
    reward_PG = reward_PG.double()  # in float32 the mean of sixteen rewards of 0.9 is not 0.9
    spread_P1 = reward_PG.amax(1, keepdim=True) - reward_PG.amin(1, keepdim=True)
    largest_P1 = reward_PG.abs().amax(1, keepdim=True).clamp(min=1.0)
    advantage_PG = (reward_PG - reward_PG.mean(1, keepdim=True)) / (reward_PG.std(1, keepdim=True) + 1e-6)
    return advantage_PG.masked_fill(spread_P1 <= SAME * largest_P1, 0.0)


def egpo(reward_PG: Tensor, entropy_PG: Tensor, lam: float = 0.4, alpha: float = 2.0) -> Tensor:
    """A' = A + lam * clip(H, -|A| / alpha, |A| / alpha); no bonus without thinking (arXiv:2508.05118)."""
    advantage_PG = grpo(reward_PG)
    cap_PG = advantage_PG.abs() / alpha
    return advantage_PG + lam * entropy_PG.double().nan_to_num(nan=0.0).clamp(-cap_PG, cap_PG)


def egpo_calibrated(reward_PG: Tensor, entropy_PG: Tensor, low: float = 0.5, high: float = 2.0) -> Tensor:
    """A' = A * clip(mean_g(H) / (H + 1e-6), low, high); weight 1 without an answer (arXiv:2602.22751)."""
    entropy_PG = entropy_PG.double().clamp(min=0.0)  # rounding can leave the entropy of certain tokens below 0
    ratio_PG = entropy_PG.nanmean(1, keepdim=True) / (entropy_PG + 1e-6)
    return grpo(reward_PG) * ratio_PG.clamp(low, high).nan_to_num(nan=1.0)


ESTIMATORS: dict[str, Callable[..., Tensor]] = {"grpo": grpo, "egpo": egpo, "egpo_calibrated": egpo_calibrated}
SEGMENT = {"grpo": "response", "egpo": "thinking", "egpo_calibrated": "answer"}  # whose entropy an estimator reads


def update(
    model,
    optimizer: torch.optim.Optimizer,
    rollouts: Rollouts,
    advantage_B: Tensor,
    temperature: float = 1.0,
    clip: float = 0.2,
    max_grad_norm: float = 1.0,
    rows_at_once: int = 32,
) -> tuple[float, float]:
    """Take one optimizer step on the clipped surrogate; return its loss and the norm of its gradient.

    loss = mean over tokens of max(-A q, -A clip(q, 1 - clip, 1 + clip)),   q = exp(logp - old logp)
    """
    num_tokens, loss = rollouts.mask_BT.sum(), 0.0
    for row_R in torch.arange(len(advantage_B), device=model.device).split(rows_at_once):
        mask_RT, advantage_R1 = rollouts.mask_BT[row_R], advantage_B.to(model.device)[row_R].float().unsqueeze(1)
        ratio_RT = (response_logp(model, rollouts, row_R, temperature) - rollouts.logp_BT[row_R]).exp()
        loss_RT = torch.maximum(-advantage_R1 * ratio_RT, -advantage_R1 * ratio_RT.clamp(1 - clip, 1 + clip))
        part = loss_RT.where(mask_RT, 0.0).sum() / num_tokens
        part.backward()  # gradients of the parts add up to that of the mean over the batch
        loss += part.item()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    return loss, grad_norm.item()


def response_logp(model, rollouts: Rollouts, row_R: Tensor, temperature: float) -> Tensor:
    """Return the log-probability of each response token under the model as it is now."""
    response_RT = rollouts.response_BT[row_R]
    token_RN = torch.cat([rollouts.prompt_BL[row_R], response_RT], dim=1)
    seen_RN = torch.cat([rollouts.prompt_mask_BL[row_R], rollouts.mask_BT[row_R].long()], dim=1)
    position_RN = (seen_RN.cumsum(-1) - 1).clamp(min=0)
    logits_RNV = model(token_RN, attention_mask=seen_RN, position_ids=position_RN, use_cache=False).logits
    return token_stats(logits_RNV[:, -response_RT.shape[1] - 1 : -1], response_RT, temperature)[0]


def train(model, tokenizer, estimator: str, steps: int, prompts: int, n: int, max_tokens: int, lr: float) -> None:
    """Train for `steps` steps of `prompts` new problems with `n` responses each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    rng = random.Random(0)
    for step in range(1, steps + 1):
        problems = [draw_problem(rng) for _ in range(prompts)]
        rollouts = sample(model, tokenizer, problems, n, max_tokens, temperature=1.0)
        texts = response_texts(tokenizer, rollouts)
        reward_PG = torch.tensor([judge(problems[row // n], text) for row, text in enumerate(texts)]).view(-1, n)
        entropy_PG = segment_entropy(tokenizer, rollouts, SEGMENT[estimator]).cpu().view(-1, n)
        advantage_B = ESTIMATORS[estimator](reward_PG, entropy_PG).flatten()
        loss, grad_norm = update(model, optimizer, rollouts, advantage_B)
        length, entropy = rollouts.mask_BT.sum(1).float().mean(), entropy_PG.nanmean()
        figures = f"reward {reward_PG.mean():.3f}  length {length:.1f} tokens  entropy {entropy:.3f} nats"
        print(f"step {step:3d}  {figures}  loss {loss:+.4f}  gradient norm {grad_norm:.3f}", flush=True)
    print(f"{problems[0].prompt[0]['content']}\n{texts[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a model on Countdown with GRPO or EGPO.")
    parser.add_argument("--model", default="egpo-tiny", help="model folder or name on the hub; default: egpo-tiny")
    parser.add_argument("--estimator", choices=ESTIMATORS, default="egpo")
    for name, value in {"steps": 40, "prompts": 16, "n": 8, "max-tokens": 136, "lr": 3e-5}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value}")
    options = vars(parser.parse_args())
    path = options.pop("model")
    if path == "egpo-tiny":
        from egpo.assets import MODELS  # the only use of the package: where its model lies

        path = MODELS[path]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()  # no dropout: old and new logp must agree
    train(model, AutoTokenizer.from_pretrained(path), **options)


if __name__ == "__main__":
    main()
