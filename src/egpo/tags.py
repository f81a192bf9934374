"""The pair of tags around the thinking: the default and its check, for text, tokens and recipes."""

THINK_TAGS = ("<think>", "</think>")


def tags_fault(tags: tuple[str, str]) -> str:
    """Return why a pair of tags cannot be used, or an empty text. If one contains the other, they are ambiguous."""
    opening, closing = tags
    if not opening or not closing:
        return "neither may be empty"
    return "neither may contain the other" if opening in closing or closing in opening else ""
