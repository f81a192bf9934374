"""Was there an answer at all? A wrong one is a figure; none at all is another kind of trouble."""

UNREADABLE = frozenset(
    {
        # countdown, gsm8k, math
        "no_answer_tag",
        "no_answer",
        "unclosed_thinking",
        "not_a_number",
        "empty_expression",
        "expression_too_long",
        "illegal_character",
        "malformed_expression",
        "unparsable",
        # code
        "no_code",
        "too_long",
        "syntax_error",
        # tool calls
        "no_thinking",
        "thinking_not_closed",
        "empty_thinking",
        "text_before_thinking",
        "nested_thinking",
        "thinking_tag_in_answer",
        "no_call",
        "malformed_call",
        "unclosed_call",
        "text_after_list",
        "bare_call",
        "mixed_syntax",
        "over_limit",
    }
)
"""Reasons by which the rewards say that a response holds nothing they could read as an answer. A task from outside has
reasons of its own: those count as readable."""
