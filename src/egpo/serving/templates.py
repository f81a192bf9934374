"""What a model's chat template says of how it calls tools and how it thinks."""

from dataclasses import dataclass

from egpo.chat_templates import render
from egpo.errors import InputError
from egpo.tags import THINK_TAGS

_TOOL_PARSERS = (
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("<tool_call>", '"arguments"'), "hermes"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|python_tag|>",), "llama3_json"),
)
"""What a template holds, and what vLLM calls the parser of such calls. The first that fits."""


@dataclass(frozen=True)
class Template:
    """`tool_parser` is None where the template shows no calls that a parser is known for; `opens_thinking` where the
    prompt ends within the thinking; `may_switch` where the template can be told whether to think."""

    tool_parser: str | None
    opens_thinking: bool
    may_switch: bool

    @property
    def reasoning_parser(self) -> str | None:
        """What vLLM calls the parser that takes the thinking out of the text; only where the prompt opens it.

        These parsers take a response without a closing tag for a thought. That is right where the prompt opened one.
        Elsewhere an answer without thinking would vanish from the text: there it stays as the model wrote it.
        """
        return "qwen3" if self.opens_thinking else None


def read_template(model: str) -> Template:
    """Of a folder, or of a name of the hub."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        fix = "give a model folder with its tokenizer, or a name of the hub and a network"
        raise InputError(f"no tokenizer ({said})", where=f"model {model}", fix=fix) from error
    source = tokenizer.chat_template
    if not source:
        fix = "put a chat_template.jinja into the model folder (copy it from the chat version of the model)"
        raise InputError("the tokenizer has no chat template", where=f"model {model}", fix=fix)
    texts = source.values() if isinstance(source, dict) else (source,)
    return _described("\n".join(texts), _prompt(tokenizer, model))


def _prompt(tokenizer: object, model: str) -> str:
    """The template at work: what stands in its text may lie in a branch that is never taken."""
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": "?"}]
    try:
        return render(tokenizer, messages)
    except TemplateError as error:
        raise InputError(f"the chat template fails ({error})", where=f"model {model}", fix="mend it") from error


def _described(source: str, prompt: str) -> Template:
    parser = next((name for marks, name in _TOOL_PARSERS if all(_holds(source, mark) for mark in marks)), None)
    opened, closed = (prompt.rfind(tag) for tag in THINK_TAGS)
    return Template(parser, opens_thinking=opened > closed, may_switch="enable_thinking" in source)


def _holds(source: str, mark: str) -> bool:
    """Templates write quotes as they are, or escaped within a string of their own."""
    return mark in source or mark.replace('"', '\\"') in source
