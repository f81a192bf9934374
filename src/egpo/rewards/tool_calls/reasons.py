"""Why a tool-call verdict came out as it did. Every verdict's reason is one of these names."""

REASONS: dict[str, str] = {
    "correct": "the format and every call are right",
    "no_thinking": "a thinking block was asked for and the response closes none",
    "thinking_not_closed": "the thought was opened and never closed, so there is no answer",
    "empty_thinking": "the thinking block holds nothing but white space and invisible characters",
    "text_before_thinking": "something stands before the opening tag of the thought",
    "nested_thinking": "a second opening tag stands inside the thought",
    "thinking_tag_in_answer": "a thinking tag stands in the answer, outside of any call",
    "no_call": "calls were expected and the answer has none",
    "unexpected_call": "no call was expected and the answer has one",
    "malformed_call": "a call that cannot be read: broken syntax, duplicate keys, NaN, something that is no literal",
    "unclosed_call": "a call that starts and never ends, as in a truncated answer",
    "text_after_list": "a Python list of calls has to be the whole answer, and text follows it",
    "bare_call": "a call outside of the list or the tags that would make it one",
    "mixed_syntax": "a Python list of calls and tagged calls in one answer",
    "over_limit": "nested deeper, written with longer numbers, or longer than the reader allows",
    "too_few_calls": "fewer calls than expected",
    "too_many_calls": "more calls than expected",
    "unknown_tool": "a function that is not among the tools",
    "wrong_name": "a function other than the expected one",
    "unknown_argument": "an argument that the function does not take",
    "missing_argument": "an argument that the function requires is not there",
    "wrong_type": "an argument of a type that the function does not take",
    "wrong_arguments": "the call names other arguments than the expected one",
    "wrong_value": "the right arguments, and a value that is not the expected one",
}


class UnreadableError(Exception):
    """What was written is no call. `reason` says why; caught where an answer or a ground truth is read."""

    def __init__(self, reason: str = "malformed_call") -> None:
        assert reason in REASONS
        super().__init__(reason)
        self.reason = reason
