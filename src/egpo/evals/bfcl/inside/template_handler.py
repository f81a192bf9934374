"""A BFCL handler that builds prompts with the model's own chat template, and parses calls in Qwen's format."""

import json
import os
from typing import Any

from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler
from overrides import override


class ByTemplate(QwenFCHandler):
    """A BFCL handler that builds prompts with the model's own chat template.

    $EGPO_BFCL_TEMPLATE holds the template's variables as JSON. $EGPO_BFCL_INSTRUCTION is put before the system message.
    """

    @override
    def _format_prompt(self, messages: list[dict[str, Any]], function: list[dict[str, Any]]) -> str:
        variables = json.loads(os.environ.get("EGPO_BFCL_TEMPLATE", "{}"))
        return str(
            self.tokenizer.apply_chat_template(
                _instructed(messages), tools=function, add_generation_prompt=True, tokenize=False, **variables
            )
        )


def _instructed(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    instruction = os.environ.get("EGPO_BFCL_INSTRUCTION", "")
    if not instruction:
        return messages
    if messages and messages[0]["role"] == "system":
        instruction, messages = f"{instruction}\n\n{messages[0]['content']}", messages[1:]
    return [{"role": "system", "content": instruction}, *messages]
