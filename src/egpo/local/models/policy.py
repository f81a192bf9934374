"""A causal language model as the engine uses it: hidden states of packs, one more token per row, logits, and prompts.

Tensor suffixes: N tokens of a pack, R rows, D hidden, V vocabulary. Three paths compute the hidden states: the engine's
own layers on a GPU or on a CPU, for the architectures in `architectures`, and transformers' layers for every other
model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from egpo.chat_templates import render
from egpo.errors import EgpoError, InputError, warn_once
from egpo.local.models import cpu_operations
from egpo.local.models.architectures import why_not_cpu_layers, why_not_cuda_layers
from egpo.local.models.attention import SlotLayout
from egpo.local.models.caches import BlockSlots, GroupSlots, Slots
from egpo.local.models.cpu_decoder import Attend, can_step_in_c, decode
from egpo.local.models.packs import Pack, PackLayout
from egpo.tasks import Problem, Task

AnySlots = Slots | GroupSlots | BlockSlots
ForwardPath = Literal["cuda_layers", "cpu_layers", "transformers"]


@dataclass(eq=False)
class Policy:
    """A model with its tokenizer.

    `stop_ids`: the tokens that end a response. `context`: the longest sequence in tokens. `template`: variables for the
    chat template.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int
    stop_ids: frozenset[int]
    pad_id: int
    template: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.head_VD.device

    @property
    def head_VD(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def path(self) -> ForwardPath:
        """Which layers compute the model: the engine's own for its device, or those of transformers."""
        if not why_not_cuda_layers(self.model):
            return "cuda_layers"
        return "transformers" if why_not_cpu_layers(self.model) else "cpu_layers"

    def ends_at(self, strings: Sequence[str] = (), tokens: Sequence[int] = ()) -> str:
        """Return in words what ends a response: the model's end tokens, and the strings and tokens of a recipe."""
        ids = sorted(self.stop_ids | set(tokens))
        named = zip(self.tokenizer.convert_ids_to_tokens(ids), ids, strict=True)
        ends = [f"{token!r:.40} (token {id})" for token, id in named]
        return " or ".join([*ends, *(f"the text {string!r:.40}" for string in strings)])

    def warn_if_slow(self) -> None:
        """Warn once if the engine's own layers cannot compute this model."""
        if self.path == "transformers":
            is_on_gpu = self.device.type == "cuda"
            why = why_not_cuda_layers(self.model) if is_on_gpu else why_not_cpu_layers(self.model)
            warn_once(
                "path",
                f"no fast kernels for {type(self.model).__name__} ({why}); using transformers' own layers, which are "
                "slower (`egpo doctor` lists the architectures with fast kernels)",
            )

    def open_slots(self) -> AnySlots:
        """Return an empty key-value cache, of the kind that the model's path fills."""
        if self.path != "cpu_layers":
            return Slots()
        return BlockSlots(self.model) if can_step_in_c(self.model) else GroupSlots()

    def hidden(self, pack: Pack, cache: AnySlots | None = None) -> Tensor:
        """Return the hidden states after the last norm (N, D), with gradients if they are enabled.

        If a cache is given, it stores the keys and values of the pack's prompts.
        """
        path = self.path if cache is None else None
        if path == "cuda_layers":
            from egpo.local.models.cuda.packed import packed_hidden

            return packed_hidden(self.model, pack)
        if isinstance(cache, GroupSlots | BlockSlots) or path == "cpu_layers":
            return decode(self.model, pack.token_N, pack.position_N, _attention_over(pack.layout, cache))
        return self._forward(pack.token_N[None], pack.position_N[None], pack.layout, cache)[0]

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Return the logits (R, V) in float32 for weights of any dtype.

        Rounded to bfloat16, they would give other probabilities than the update computes.
        """
        if hidden_RD.is_cuda and hidden_RD.dtype != torch.float32:
            return torch.mm(hidden_RD, self.head_VD.T, out_dtype=torch.float32)
        return hidden_RD.float() @ self.head_VD.float().T

    def next_hidden(self, token_R: Tensor, slots: AnySlots) -> Tensor:
        """Append one token to each row of the cache, and return their hidden states (R, D)."""
        if isinstance(slots, BlockSlots):
            return slots.next_hidden(token_R)
        if isinstance(slots, GroupSlots):
            slots.open_next()
            return decode(self.model, token_R, slots.position_R, slots.attend)
        layout = slots.open_next()
        return self._forward(token_R[:, None], slots.position_R[:, None], layout, slots)[:, 0]

    def _forward(self, token: Tensor, position: Tensor, layout: PackLayout | SlotLayout, cache: Slots | None) -> Tensor:
        if self.model.is_gradient_checkpointing:
            # In training mode, transformers gives no cache to a layer that it would compute again.
            self.model.train(cache is None)
        out = self.model.base_model(
            input_ids=token, position_ids=position, past_key_values=cache, use_cache=cache is not None, layout=layout
        )
        hidden: Tensor = out.last_hidden_state
        return hidden


def _attention_over(layout: PackLayout, cache: GroupSlots | BlockSlots | None) -> Attend:
    """Return the attention function for a pack on a CPU.

    It also stores keys and values in the cache, if there is one.
    """

    def attend(layer: int, query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, scale: float) -> Tensor:
        if cache is not None:
            cache.collect(key_NKd, value_NKd)
        return cpu_operations.attend(query_NHd, key_NKd, value_NKd, layout, scale)

    return attend


def prompt_tokens(policy: Policy, task: Task, problems: Sequence[Problem]) -> list[tuple[int, ...]]:
    """Return the token ids of each problem's prompt, rendered with the model's chat template."""
    texts = [prompt_text(policy, task, problem) for problem in problems]
    for problem, text in zip(problems, texts, strict=True):
        _require_utf8(problem, text)
    encoded = policy.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [tuple(ids) for ids in encoded]


def prompt_text(policy: Policy, task: Task, problem: Problem) -> str:
    """Return the prompt as the model reads it; InputError if the task's messages do not fit the chat template."""
    messages = task.prompt(problem)
    if isinstance(messages, str) or not messages:
        raise InputError(
            f"the task's `prompt` returned {messages!r:.60}, not a list of messages",
            where=f"problem {problem.key}",
            fix='return messages: [{"role": "user", "content": ...}]',
        )
    try:
        return render(policy.tokenizer, messages, variables=policy.template)
    except EgpoError:
        raise
    except Exception as error:  # boundary: a template is a program of the model folder, and may raise anything
        raise InputError(
            f"the chat template refuses the prompt: {error}",
            where=f"problem {problem.key}, model {policy.tokenizer.name_or_path}",
            fix="compare the task's messages with what the template expects",
        ) from error


def _require_utf8(problem: Problem, text: str) -> None:
    """Raise InputError if a prompt has half of a surrogate pair, which JSON can contain and no tokenizer can encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the prompt contains {text[error.start]!r}, half of a surrogate pair",
            where=f"problem {problem.key!r:.80}",
            fix="fix the data: such a character comes from text that was cut or decoded wrongly",
        ) from error


def require_room(policy: Policy, problem: Problem, num_tokens: int, max_response_tokens: int) -> None:
    """Raise InputError unless the prompt and the longest response fit the model's context."""
    longest_prompt = policy.context - max_response_tokens
    if num_tokens > longest_prompt:
        raise InputError(
            f"a prompt of {num_tokens} tokens and a response of {max_response_tokens} do not fit the model's context "
            f"of {policy.context}",
            where=f"problem {problem.key[:80]}",
            fix=f"leave such problems out with rollout.max_prompt_tokens={max(longest_prompt, 1)}"
            if longest_prompt > 0
            else "lower rollout.max_response_tokens",
        )
