"""A BFCL handler that builds prompts with the model's own chat template, and parses calls in Qwen's format."""

import json
import os
from typing import Any

from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler
from overrides import override

# The text of tools of Qwen3's chat template: that of egpo.data.tool_prompt, which cannot be imported here.
HEAD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
TAIL = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


class ByTemplate(QwenFCHandler):
    """A BFCL handler that builds prompts with the model's own chat template.

    If the template does not write tools, they are put into the system message, in Qwen's format, as in training.
    $EGPO_BFCL_TEMPLATE holds the template's variables as JSON. $EGPO_BFCL_INSTRUCTION is put before the system message.
    """

    @override
    def _format_prompt(self, messages: list[dict[str, Any]], function: list[dict[str, Any]]) -> str:
        instruction = os.environ.get("EGPO_BFCL_INSTRUCTION", "")
        instructed = _instructed(messages, instruction)
        prompt = self._rendered(instructed, function)
        if function and prompt == self._rendered(instructed, None):
            tools = HEAD + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in function) + TAIL
            system = instructed[0]["content"] if instructed and instructed[0]["role"] == "system" else ""
            turns = instructed[1:] if system else instructed
            text = f"{system}\n\n{tools}" if system else tools
            prompt = self._rendered([{"role": "system", "content": text}, *turns], None)
        return prompt

    def _rendered(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        variables = json.loads(os.environ.get("EGPO_BFCL_TEMPLATE", "{}"))
        return str(
            self.tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=False, **variables
            )
        )


def _instructed(messages: list[dict[str, Any]], instruction: str) -> list[dict[str, Any]]:
    if not instruction:
        return messages
    if messages and messages[0]["role"] == "system":
        instruction, messages = f"{instruction}\n\n{messages[0]['content']}", messages[1:]
    return [{"role": "system", "content": instruction}, *messages]
