"""The pair of tags around the thinking in a response: the default pair, and the check of another pair."""

THINK_TAGS = ("<think>", "</think>")


def tags_fault(tags: tuple[str, str]) -> str:
    """Return why a pair of tags cannot be used; an empty string if it can. No tag may be empty or contain the other."""
    opening, closing = tags
    if not opening or not closing:
        return "neither tag may be empty"
    return "neither tag may contain the other" if opening in closing or closing in opening else ""


def opens_thinking(prompt: str, tags: tuple[str, str] = THINK_TAGS) -> bool:
    """Return whether a prompt ends with the opening tag, as in the Qwen3-Thinking template."""
    return prompt.rstrip().endswith(tags[0].strip())
