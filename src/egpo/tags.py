"""The pair of tags around a thought: one default, one rule, for text, tokens and recipes alike."""

THINK_TAGS = ("<think>", "</think>")


def tags_fault(tags: tuple[str, str]) -> str:
    """Why a pair cannot be used, or nothing: where one tag holds the other, either would be found in its place."""
    opening, closing = tags
    if not opening or not closing:
        return "neither may be empty"
    return "neither may contain the other" if opening in closing or closing in opening else ""
