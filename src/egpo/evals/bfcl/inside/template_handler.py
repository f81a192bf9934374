"""A handler of BFCL that builds prompts with the model's own chat template, and parses calls as for Qwen."""

import json
import os
from typing import Any

from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler
from overrides import override


class ByTemplate(QwenFCHandler):
    """$EGPO_BFCL_TEMPLATE holds variables of the template, $EGPO_BFCL_INSTRUCTION a system turn to put first."""

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
