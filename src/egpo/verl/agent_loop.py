"""The agent loop `egpo` in verl: rows with `agent_name: egpo` are played as episodes of their environment.

verl's own `tool_agent` makes a new tool object for each call; here one instance of the environment lives from `reset`
to the verdict. The verdict is the episode's own, so that verl calls no reward function for such a row. This module is
imported after verl has imported its agent loops.
"""

import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import uuid4

from omegaconf import OmegaConf
from transformers import GenerationConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from egpo.verl.episode_player import AGENT_NAME, COLUMN, EpisodePlayer, EpisodeSpec, PlayedEpisode, SampledTurn
from egpo.verl.settings import OverlongKeys, read_settings


class EpisodeLoop(AgentLoopBase):  # type: ignore[misc]
    """One episode. verl makes a new object for every rollout; all objects of a process share the player."""

    _player: ClassVar[EpisodePlayer | None] = None
    _overlong: ClassVar[OverlongKeys | None] = None

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **row: Any) -> AgentLoopOutput:
        player, spec = self._shared_player(), EpisodeSpec.from_row(row.get("extra_info"))
        session, facts = uuid4().hex, _ServerFacts(int(row.get("global_steps") or 0))

        async def generate(prompt: list[int], max_tokens: int) -> SampledTurn:
            began = time.monotonic()
            # The same id for all turns: they go to the server that has the earlier turns in its cache.
            output = await self.server_manager.generate(
                request_id=session,
                prompt_ids=prompt,
                sampling_params={**sampling_params, "max_tokens": max_tokens},
                priority=int(priority),
            )
            facts.take(output, time.monotonic() - began)
            return SampledTurn(output.token_ids, output.log_probs, output.stop_reason == "aborted")

        began = time.monotonic()
        played = await player.play(spec, generate)
        output = _output(played, facts, time.monotonic() - began)
        if (overlong := self._overlong) is not None:
            output.reward_score -= overlong.of(len(played.tokens), int(self.rollout_config.response_length))
        if not sampling_params.get("logprobs"):  # also of an episode that sampled nothing
            output.response_logprobs = None
        return output

    def _shared_player(self) -> EpisodePlayer:
        kind = type(self)
        if kind._player is None or kind._player.tokenizer is not self.tokenizer:
            kind._player = self._new_player()
        return kind._player

    def _new_player(self) -> EpisodePlayer:
        settings = read_settings(OmegaConf.to_container(self.config.algorithm, resolve=True))
        type(self)._overlong = settings.overlong
        variables = self.apply_chat_template_kwargs
        # The cores are shared by all workers of verl on the machine.
        cores = max(1, (os.cpu_count() or 1) // max(1, int(self.rollout_config.agent.num_workers)))
        return EpisodePlayer(
            self.tokenizer,
            settings.episodes,
            settings.tags,
            max_prompt_tokens=int(self.rollout_config.prompt_length),
            max_response_tokens=int(self.rollout_config.response_length),
            stop_ids=stop_ids(str(self.config.actor_rollout_ref.model.path), self.tokenizer),
            variables=OmegaConf.to_container(variables, resolve=True) if variables else None,
            num_workers=cores,
        )


class _ServerFacts:
    """What the server said about the turns of an episode, joined: versions of the weights, preemptions, seconds."""

    def __init__(self, step: int) -> None:
        # An episode that never sampled still needs versions: those of the step, which begins with the one before it.
        self.extra: dict[str, Any] = {"min_global_steps": max(0, step - 1), "max_global_steps": max(0, step - 1)}
        self.seconds, self.num_preempted, self.num_turns, self.routed_experts = 0.0, 0, 0, None

    def take(self, output: Any, seconds: float) -> None:
        first = self.num_turns == 0
        newest: Mapping[str, Any] = output.extra_fields
        if first:
            self.extra |= newest
        elif newest.get("max_global_steps") is not None:
            self.extra["max_global_steps"] = newest["max_global_steps"]
        self.seconds += seconds
        self.num_preempted += output.num_preempted or 0
        self.num_turns += 1
        # Those of a later turn cover the earlier ones, which are part of its prompt.
        self.routed_experts = output.routed_experts


def _output(played: PlayedEpisode, facts: _ServerFacts, seconds: float) -> AgentLoopOutput:
    """Return an episode as verl takes it. `turn_scores` and `tool_rewards` are keys that verl's own loops set."""
    metrics = AgentLoopMetrics(
        generate_sequences=facts.seconds, tool_calls=seconds - facts.seconds, num_preempted=facts.num_preempted
    )
    return AgentLoopOutput(
        prompt_ids=played.prompt,
        response_ids=played.tokens,
        response_mask=played.mask,
        response_logprobs=played.logps,
        routed_experts=facts.routed_experts,
        reward_score=float(played.record.verdict.reward),
        # As verl counts: the prompt, the turns of the assistant, and the answers to them.
        num_turns=1 + len(played.record.turns) + played.num_replies,
        metrics=metrics,
        extra_fields={
            **facts.extra,
            "reward_extra_info": played.reward_information,
            COLUMN: played.record.to_json(),
            "finished": played.finished,
            "turn_scores": [],
            "tool_rewards": [],
        },
    )


def stop_ids(model: str, tokenizer: Any) -> frozenset[int]:
    """Return the tokens at which vLLM ends a response: those of the generation config and of the tokenizer."""
    try:
        named = GenerationConfig.from_pretrained(model, trust_remote_code=False).eos_token_id
    except OSError:  # the model has no such file
        named = None
    listed = named if isinstance(named, list) else [named]
    return frozenset(int(one) for one in (*listed, tokenizer.eos_token_id) if one is not None)


def register_agent_loop() -> None:
    register(AGENT_NAME)(EpisodeLoop)
