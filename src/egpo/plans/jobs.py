"""The work of a step: so many prompts, so many responses, so long."""

from dataclasses import dataclass

from egpo.config import Config

USUAL_PROMPT_TOKENS = 128


@dataclass(frozen=True)
class StepJob:
    """`response_tokens` is the mean, `longest` what there must be room for. `at_once` rows are sampled together."""

    prompts: int
    group: int
    prompt_tokens: int
    response_tokens: int
    longest: int
    at_once: int
    epochs: int = 1
    lora: bool = False
    reference: bool = False
    gradient_checkpointing: bool = False
    bytes_per_weight: int = 2

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def new_tokens(self) -> int:
        return self.rows * self.response_tokens

    @property
    def group_tokens(self) -> int:
        """Of one prompt and its responses in a pack."""
        return self.prompt_tokens + self.group * (self.response_tokens - 1)

    @classmethod
    def of(cls, config: Config, prompt_tokens: int | None, response_tokens: int | None) -> "StepJob":
        """What a recipe does not say is told: prompts are as long as it allows, and so are responses."""
        rollout = config.rollout
        return cls(
            prompts=rollout.prompts,
            group=rollout.n,
            prompt_tokens=prompt_tokens or rollout.max_prompt_tokens or USUAL_PROMPT_TOKENS,
            response_tokens=min(response_tokens or rollout.max_response_tokens, rollout.max_response_tokens),
            longest=rollout.max_response_tokens,
            at_once=min(rollout.rows_at_once or rollout.batch, rollout.batch),
            epochs=config.update.epochs,
            lora=config.model.lora is not None,
            reference=config.update.kl > 0 and config.model.lora is None,
            gradient_checkpointing=config.model.gradient_checkpointing,
            bytes_per_weight=4 if config.model.dtype == "float32" else 2,
        )
