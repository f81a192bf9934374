"""The advantage estimators in TRL's GRPOTrainer: `EgpoGRPOTrainer`, a subclass that replaces the advantages of a batch.

Sampling, rewards, loss and update are TRL's own. What TRL's trainer does not keep is kept here while it scores a batch:
the rewards of each function, and the entropies of the pass that computes the old log-probabilities. If there is no such
pass and the estimator uses entropy, one pass without gradient is added. This is the only module that imports TRL.

Tensor suffixes: B rows of this process, N rows of all processes, F reward functions, T tokens.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from packaging.specifiers import SpecifierSet
from torch import Tensor

from egpo.advantages import Signals, estimator_named
from egpo.advantages.signals import Metrics
from egpo.errors import EgpoError, InputError, nearest, warn_once
from egpo.sections import checked
from egpo.segments import THINK_TAGS, mean_over, opened_by_prompt, segment_masks
from egpo.segments.turns import spans_in, turn_segments
from egpo.support import TRL

try:
    import trl
    from trl import GRPOTrainer
except (ImportError, RuntimeError) as error:  # TRL raises RuntimeError if a package that it needs is missing
    raise EgpoError(
        f"TRL cannot be imported: {str(error).splitlines()[-1]}", where="egpo.trl", fix=f"pip install 'trl{TRL}'"
    ) from error

WHERE = "EgpoGRPOTrainer"
PASS = "_get_per_token_logps_and_entropies"
USED_METHODS = {
    "_generate_and_score_completions": "inputs",
    "_calculate_rewards": "inputs",
    PASS: "model input_ids attention_mask logits_to_keep batch_size compute_entropy",
    "_compute_loss": "inputs",
}
"""The methods of TRL's trainer that this module overrides, calls or relies on, with the parameters that it uses."""
USED_NAMES = "num_generations reward_func_names reward_weights scale_rewards _logs _metrics _tokenizer"  # attributes
USED_KEYS = "prompt_ids prompt_mask completion_ids completion_mask advantages"  # of a batch
Row = Tensor | None
Tables = tuple[Tensor, Tensor] | None


class EgpoGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPOTrainer with the advantages of one of egpo's estimators.

    `estimator` is a name of `egpo.advantages.ESTIMATORS` or `module:name`, `estimator_settings` its settings as in a
    recipe. `tags` are those around the thinking. `correct_from` names the reward function whose value is 1 or more for
    a fully correct response; only estimators that ask for correctness need it. All other arguments are TRL's.
    """

    def __init__(
        self,
        *theirs: Any,
        estimator: str = "egpo",
        estimator_settings: dict[str, Any] | None = None,
        tags: Sequence[str] = THINK_TAGS,
        correct_from: str | None = None,
        **named: Any,
    ) -> None:
        row, own = estimator_named(estimator), dict(estimator_settings or {})
        if row.settings is not None:
            own = checked(row.settings, f"{WHERE}, estimator_settings of `{estimator}`", **own).model_dump()
        segment = own.pop("entropy_mode", row.segment) if row.segment else None
        self._estimator, self._own_settings, self._segment, self._tags = row, own, segment, tags
        self._per_token, self._is_scoring, self._first_pass = row.level == "token", False, None
        self._uses_entropy = self._per_token or segment is not None
        _require_supported(GRPOTrainer, trl.__version__, self._per_token)
        super().__init__(*theirs, **named)
        if correct_from not in (None, *self.reward_func_names):
            what = f"`correct_from` is `{correct_from}`, which is not a reward function"
            raise InputError(what, where=WHERE, fix=nearest(str(correct_from), self.reward_func_names))
        self._correct_column = None if correct_from is None else self.reward_func_names.index(correct_from)
        self._check(is_built_in=":" not in estimator)

    def _check(self, is_built_in: bool) -> None:
        """Refuse what would fail, or mean something else, at the first step. A built-in estimator is tried out."""
        for name, value in (("scale_rewards", "batch"), ("multi_objective_aggregation", "normalize_then_sum")):
            if getattr(self, name, None) == value:
                what = f"{name} is `{value}`, but the estimators compare the sum of the rewards within a group"
                raise InputError(what, where=WHERE, fix="leave it at its default")
        if self._segment in ("thinking", "answer"):
            nothing_BT = torch.zeros(1, 1, dtype=torch.long)
            segment_masks(nothing_BT, nothing_BT, self._tokenizer, self._tags)
        if is_built_in:
            one_N = torch.ones(self.num_generations)
            reward_NF = one_N.cumsum(0).remainder(2)[:, None].repeat(1, len(self.reward_func_names))
            tables = (one_N[:, None], one_N[:, None].bool()) if self._per_token else None
            self._estimate(reward_NF, one_N, one_N, tables, {})

    def _calculate_rewards(self, *inputs: Any, **named: Any) -> Any:
        """Keep the rewards of all processes, which TRL adds up and drops."""
        self._reward_NF = super()._calculate_rewards(*inputs, **named)
        return self._reward_NF

    def _get_per_token_logps_and_entropies(self, model: Any, *inputs: Any, **named: Any) -> Any:
        """Keep the first pass of the policy while a batch is scored, with its entropies: TRL's head computes them."""
        if not (self._is_scoring and self._first_pass is None and model is self.model):
            return super()._get_per_token_logps_and_entropies(model, *inputs, **named)
        named["compute_entropy"] = True
        self._first_pass = super()._get_per_token_logps_and_entropies(model, *inputs, **named)
        return self._first_pass

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return TRL's batch with the estimator's advantages. In an evaluation they stay TRL's."""
        self._is_scoring, self._first_pass = self.model.training and self._uses_entropy, None
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self._is_scoring = False
        if self.model.training:
            batch["advantages"] = self._advantages(batch)
        self._first_pass = None
        return batch

    def _advantages(self, batch: dict[str, Any]) -> Tensor:
        """Return the advantages of this process's rows, (B,) or (B, T). A group may be spread over processes."""
        mask_BT = (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
        gather, pad = self.accelerator.gather, self.accelerator.pad_across_processes
        entropy_N, nll_N, tables, metrics = None, None, None, Metrics()
        if self._uses_entropy:
            # Without old log-probabilities in the batch, the first pass was that of an adapter's reference model.
            passed: Any = self._first_pass if "old_per_token_logps" in batch else self._pass(batch)
            logp_BT, entropy_BT = passed[0].float(), passed[1].float()
            if self._segment is not None:
                segment_BT = self._segment_mask(batch, mask_BT)
                entropy_N, nll_N = (gather(mean_over(one_BT, segment_BT)) for one_BT in (entropy_BT, -logp_BT))
            if self._per_token:
                tables = (gather(pad(entropy_BT, dim=1)), gather(pad(mask_BT.long(), dim=1)).bool())
        advantage = self._estimate(self._reward_NF, entropy_N, nll_N, tables, metrics)
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        logged, advantage_N = self._logs["advantages"], advantage if tables is None else mean_over(advantage, tables[1])
        for _ in range(min(len(logged), len(advantage_N))):
            logged.pop()  # TRL's own, in its table of completions
        logged.extend(advantage_N.nan_to_num(nan=0.0).tolist())
        here: Tensor = torch.split(advantage, len(mask_BT))[self.accelerator.process_index]
        return here[:, : mask_BT.shape[1]] if self._per_token else here

    def _estimate(self, reward_NF: Tensor, entropy_N: Row, nll_N: Row, tables: Tables, metrics: Metrics) -> Tensor:
        """Call the estimator. A row for which every reward function returned None is left out, and gets 0."""
        judged_N, column = ~reward_NF.isnan().all(1), self._correct_column
        reward_N = (reward_NF * self.reward_weights.to(reward_NF.device)).nansum(1)
        group_N = torch.arange(len(reward_N), device=reward_N.device) // self.num_generations
        advantage = torch.zeros_like(reward_N if tables is None else tables[0])
        if bool(judged_N.any()):
            signals = Signals(
                reward_B=reward_N[judged_N],
                group_B=group_N[judged_N],
                entropy_B=None if entropy_N is None else entropy_N[judged_N],
                correct_B=None if column is None else reward_NF[judged_N, column] >= 1,
                nll_B=None if nll_N is None else nll_N[judged_N],
            )
            settings = {"normalize": self.scale_rewards == "group", **self._own_settings, "metrics": metrics}
            of_tokens = [table_NT[judged_N] for table_NT in tables or ()]
            advantage[judged_N] = self._estimator(signals, *of_tokens, **settings).to(advantage.dtype)
        return advantage

    @torch.no_grad()
    def _pass(self, batch: dict[str, Any]) -> Any:
        """Run the policy over the batch without gradient. TRL's head divides the logits by the sampling temperature."""
        ids, mask = (torch.cat([batch[f"prompt_{one}"], batch[f"completion_{one}"]], 1) for one in ("ids", "mask"))
        images = inspect.signature(getattr(GRPOTrainer, PASS)).parameters.keys() & batch.keys()
        named = {key: batch[key] for key in images} | {"compute_entropy": True}
        named["batch_size"] = self.args.per_device_train_batch_size
        named["logits_to_keep"] = batch["completion_ids"].shape[1]
        return super()._get_per_token_logps_and_entropies(self.model, ids, mask, **named)

    def _segment_mask(self, batch: dict[str, Any], mask_BT: Tensor) -> Tensor:
        """Return the mask of the estimator's segment. With tools, each turn has a thinking and an answer of its own."""
        if self._segment == "response":
            return mask_BT
        words, ids_BT = (self._tokenizer, self._tags), batch["completion_ids"]
        opened_B = opened_by_prompt(batch["prompt_ids"], batch["prompt_mask"], *words)
        if "tool_mask" in batch:
            segments = turn_segments(ids_BT, mask_BT, spans_in(ids_BT, mask_BT, opened_B, *words), *words)
        else:
            segments = segment_masks(ids_BT, mask_BT, *words, opened_B=opened_B)
        return segments.named(str(self._segment))


def _require_supported(trainer: Any, version: str, per_token: bool) -> None:
    """Raise EgpoError if a version that was not tested lacks a name that this module uses; otherwise warn of it."""
    if SpecifierSet(TRL).contains(version, prereleases=True):
        return
    source, missing = inspect.getsource(trainer), []
    for name, parameters in USED_METHODS.items():
        known = inspect.signature(getattr(trainer, name)).parameters if hasattr(trainer, name) else {}
        missing += [f"{name}({one})" for one in parameters.split() if one not in known]
    missing += [f"self.{name}" for name in USED_NAMES.split() if f"self.{name}" not in source]
    missing += [f"`{key}` in a batch" for key in USED_KEYS.split() if f'"{key}": ' not in source]
    missing += ["advantages per token"] if per_token and "advantages.dim()" not in source else []
    if missing:
        what = f"TRL {version} has other internals; missing: {', '.join(missing)}"
        raise EgpoError(what, where=WHERE, fix=f"pip install 'trl{TRL}'")
    warn_once("version of TRL", f"{WHERE} was tested with trl{TRL}, but TRL {version} is installed")
