"""Renderings to token ids, many at a time: each answer starts where its prompt ends, and ends with a stop token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from egpo.local.sft.rendering import Answer, Rendering


@dataclass(frozen=True)
class Encoded:
    """The tokens of an example, up to the last that is learned, and the `spans` (from, to) that are."""

    tokens: list[int]
    spans: tuple[tuple[int, int], ...]

    @property
    def num_learned(self) -> int:
        """Nothing predicts the first token."""
        return sum(end - max(start, 1) for start, end in self.spans)


@dataclass(frozen=True)
class Encoder:
    """`stop_ids` end an answer: the last of them in it is the last token that is learned of it."""

    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]

    def encode(self, renderings: Sequence[Rendering]) -> Iterator[list[Encoded]]:
        """The examples of each rendering: one, unless the tokens of an answer change when the conversation goes on (a
        token reaches over the end of a turn). Then every answer is one of its own, as where the text changes."""
        answers = iter(self._answers([answer for rendering in renderings for answer in rendering.answers]))
        for rendering in renderings:
            own = [next(answers) for _ in rendering.answers]
            joined = _joined(own)
            yield [joined] if joined else own

    def ends(self, encoded: Encoded) -> bool:
        """Whether its last answer has a stop token: a model that learns from others never learns to stop."""
        return encoded.tokens[-1] in self.stop_ids

    def _answers(self, answers: Sequence[Answer]) -> list[Encoded]:
        prompts = self._tokens([answer.prompt for answer in answers])
        texts = self._tokens([answer.text for answer in answers])
        return [self._answer(*three) for three in zip(answers, prompts, texts, strict=True)]

    def _answer(self, answer: Answer, prompt: list[int], text: list[int]) -> Encoded:
        start = len(prompt)
        if text[:start] != prompt:
            # A token of the whole text reaches over the end of the prompt. At inference none can.
            text = prompt + self._tokens([answer.text[len(answer.prompt) :]])[0]
        end = next((i + 1 for i in range(len(text) - 1, start - 1, -1) if text[i] in self.stop_ids), len(text))
        return Encoded(text[:end], ((start, end),))

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        """The template has written the special tokens already."""
        if not texts:
            return []
        tokens: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return tokens


def _joined(own: list[Encoded]) -> Encoded | None:
    """One example for all answers of a conversation; none where the last one's tokens are not those of the others."""
    last = own[-1]
    if any(last.tokens[: len(one.tokens)] != one.tokens for one in own):
        return None
    return Encoded(last.tokens, tuple(span for one in own for span in one.spans))
