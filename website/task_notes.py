"""What the pages of the tasks say beyond what the code can tell: one row of TASK_NOTES per built-in task.

To add a task: a row here with a sentence, the meaning of each setting and each mode, and responses with the reward and
the reason that they get. The page shows them as Python code, and tests/test_docs.py runs it.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Example:
    """A response to the page's problem, and the verdict that it gets in the default mode."""

    response: str
    reward: float
    reason: str


@dataclass(frozen=True)
class TaskNotes:
    """The hand-written parts of a task's page. `rewards` are its rows of the table of rewards; `pages` lead further."""

    title: str
    about: str
    settings: dict[str, str]
    modes: dict[str, str]
    examples: tuple[Example, ...]
    source: str
    ground_truth: str
    rewards: tuple[str, ...]
    pages: str
    example_settings: tuple[tuple[str, Any], ...] = ()
    index: int = 0
    """Which training problem the page shows."""
    sandbox: bool = False


COMMON_SETTINGS = {
    "source": "Folder written by `egpo prepare` or `egpo convert`. Without one, problems are generated.",
    "train": "Number of training problems to generate, or to read from `source` at most.",
    "test": "Number of test problems to generate, or to read from `source` at most.",
    "seed": "Seed of the generator.",
}

_SANDBOX = (
    "Where programs run: `bubblewrap`, `limits`, or the URL of a service ([sandbox](../sandbox.md)). "
    "Without it, the variable `EGPO_SANDBOX` decides, else `bubblewrap`."
)
_CODE = "```python\nprint(input().count('r'))\n```"

_BFCL_COUNTS = (
    "| part | categories | cases | left out | problems |\n|---|---|---|---|---|\n"
    "| `train` | `simple_python` 261, `irrelevance` 165, `parallel_multiple` 145, `parallel` 130, `multiple` 122 "
    "| 866 | 43 | 823 |\n"
    "| `held_out` | `simple_python` 121, `parallel` 70, `irrelevance` 69, `multiple` 59, `parallel_multiple` 55 "
    "| 374 | 0 | 374 |\n"
    "| `unseen` | `live_multiple` 1,051, `live_irrelevance` 884, `live_simple` 256, `live_parallel_multiple` 24, "
    "`live_parallel` 16 | 2,235 | 4 | 2,231 |"
)

TASK_NOTES: dict[str, TaskNotes] = {
    "countdown": TaskNotes(
        title="Countdown",
        about="Reach a target with `+`, `-`, `*` and `/`, using every given number exactly once. Generated problems "
        "are solvable by construction. The order of the numbers does not matter: the same numbers with the same target "
        "are the same problem.",
        settings={
            "mode": "Mode of the reward, see above.",
            "min_numbers": "Fewest numbers of a generated problem; at least 2.",
            "max_numbers": "Most numbers of a generated problem.",
            "max_number": "Largest number of a generated problem.",
            "max_target": "Largest target of a generated problem.",
            "prompt_format": "Text of the prompt, with the fields `{numbers}` and `{target}`.",
        },
        modes={
            "shaped": "0.1 for closed thinking, 0.1 for a complete answer tag, 0.3 for exactly the given numbers, "
            "0.5 for the target",
            "binary": "1 for a correct answer, else 0",
        },
        examples=(
            Example("<think>51 - 3</think><answer>51 - (26 - 23)</answer>", 1.0, "correct"),
            Example("<answer>51 - (26 - 23)</answer>", 0.9, "correct"),
            Example("<think>Add.</think><answer>51 + 26 - 23</answer>", 0.5, "wrong_value"),
            Example("<think>48.</think><answer>48</answer>", 0.2, "wrong_numbers"),
            Example("<think>51 - (26 - 23)</think> That is it.", 0.1, "no_answer_tag"),
        ),
        source='rows `{"target": 48, "nums": [23, 51, 26]}`, such as `Jiayi-Pan/Countdown-Tasks-3to4`. If a source has '
        "no splits, its first 327,680 rows are for training and the next 1,024 for testing",
        ground_truth="JSON, as in the example above",
        rewards=("countdown",),
        pages="[the reward in detail](../rewards/countdown.md), [tuning notes](../tuning/countdown.md)",
    ),
    "gsm8k": TaskNotes(
        title="GSM8K",
        about="Word problems whose answer is one number after `####`. The dataset comes from the hub or from a file. "
        "Without a source, small word problems are generated, so that everything can be tried without a connection.",
        settings={
            "mode": "Mode of the reward, see above.",
            "max_value": "Largest number in a generated problem and its worked answer; at least 20. Without it, the "
            "templates' own limits hold.",
        },
        modes={
            "binary": "1 for the right number, else 0",
            "shaped": "1.1 for the right number, 0.1 for another one, 0.05 if what is marked is not one number, else 0",
        },
        examples=(
            Example("4 * 2 = 8, and 8 + 16 = 24.\n#### 24", 1.0, "correct"),
            Example("He will be \\boxed{24}.", 1.0, "correct"),
            Example("4 + 2 + 16 = 22.\n#### 22", 0.0, "wrong_number"),
            Example("He will be 24 years old.", 0.0, "no_answer"),
            Example("#### twenty-four", 0.0, "not_a_number"),
        ),
        source='rows `{"question": "...", "answer": "... #### 24"}`, such as `openai/gsm8k`',
        ground_truth="the number",
        rewards=("gsm8k",),
        pages="[the reward in detail](../rewards/gsm8k.md), [tuning notes](../tuning/gsm8k.md)",
    ),
    "function_calling": TaskNotes(
        title="Function calling",
        about="Multi-turn conversations with tools. The model answers the last request with the right calls, or "
        "without a call where none is needed. Generated conversations use a dozen tools whose arguments cover all "
        "JSON types, with distractors, parallel calls and tool results. Two generated conversations with the same last "
        "request and the same calls are the same problem; two rows of a converted file are the same problem if their "
        "whole prompts are equal.",
        settings={
            "mode": "Mode of the reward, see above.",
            "max_turns": "Most requests of a generated conversation.",
            "max_calls": "Most calls per request.",
            "max_tools": "Most tools of a generated conversation; at least 2. Half of them are distractors.",
            "describe_tools": "Whether generated tools have descriptions, or only types.",
            "instruction": 'Text before the tools. `null`: that of the record, else one that asks for thinking. `""`: '
            "none.",
        },
        modes={
            "strict_think": "1 if a well-formed thinking block comes first and every call is right, else 0",
            "plain": "1 if every call is right, else 0; thinking is not required",
            "shaped": "0.1 for the form plus 1 for the calls",
        },
        examples=(
            Example(
                '<think>Set it.</think><tool_call>{"name": "set_thermostat", "arguments": '
                '{"room": "study", "degrees": 16.5, "schedule": {"from": 4, "to": 19}}}</tool_call>',
                1.0,
                "correct",
            ),
            Example(
                '<tool_call>{"name": "set_thermostat", "arguments": '
                '{"room": "study", "degrees": 16.5, "schedule": {"from": 4, "to": 19}}}</tool_call>',
                0.0,
                "no_thinking",
            ),
            Example(
                '<think>Set it.</think><tool_call>{"name": "set_thermostat", "arguments": '
                '{"room": "study", "degrees": 18, "schedule": {"from": 4, "to": 19}}}</tool_call>',
                0.0,
                "wrong_value",
            ),
            Example(
                '<think>Set it.</think><tool_call>{"name": "set_thermostat", "arguments": '
                '{"room": "study", "degrees": 16.5}}</tool_call>',
                0.0,
                "missing_argument",
            ),
            Example("<think>It is done.</think>The study is at 16.5 degrees.", 0.0, "no_call"),
        ),
        source="hardgen conversations, OpenAI messages or xlam rows; the format is detected from the records. "
        "`egpo convert` writes the same folders and keeps every turn",
        ground_truth="the calls as text, as in the example above; empty if the right answer contains no call",
        rewards=("tool_calls",),
        pages="[the reward in detail](../rewards/tool_calls.md), [tuning notes](../tuning/tool_calls.md), "
        "[evaluation on BFCL](../bfcl.md)",
        example_settings=(("max_turns", 1), ("max_calls", 1), ("max_tools", 2)),
    ),
    "code": TaskNotes(
        title="Code",
        about="Programs that are run against tests in a [sandbox](../sandbox.md). Generated problems come from 34 "
        "templates with parameters: half ask for a function (tested by asserts), half for a program (tested by inputs "
        "and outputs).",
        settings={"sandbox": _SANDBOX, "mode": "Mode of the reward, see above."},
        modes={"binary": "1 if every test passes, else 0", "fraction": "the fraction of the tests that pass"},
        examples=(
            Example(_CODE, 1.0, "correct"),
            Example("```python\nprint(len(input()))\n```", 0.0, "wrong_answer"),
            Example("```python\nprint(int(input()))\n```", 0.0, "runtime_error"),
            Example("```python\nprint(input()\n```", 0.0, "syntax_error"),
            Example("Count the letters with `str.count`.", 0.0, "no_code"),
        ),
        source='rows `{"question": "...", "tests": ..., "solution": "..."}`; `solution` is optional',
        ground_truth="the tests as JSON; [all forms](../rewards/code.md#ground-truth)",
        rewards=("code",),
        pages="[the reward in detail](../rewards/code.md), [the sandbox](../sandbox.md)",
        sandbox=True,
    ),
    "mixed": TaskNotes(
        title="Mixed mathematics and code",
        about="Mathematics, judged by math-verify, and programs, judged in a [sandbox](../sandbox.md), in one set. The "
        "column `ability` of a row says which reward judges it. The generated rows are a few dozen, for a dry run of "
        "both rewards in one training.",
        settings={"sandbox": _SANDBOX},
        modes={},
        examples=(
            Example("<think>The sum is 2538.</think>The sum is \\boxed{2538}.", 1.0, "correct"),
            Example("\\boxed{5076 / 2}", 1.0, "correct"),
            Example("\\boxed{2538 2539}", 0.0, "not_one_answer"),
            Example("\\boxed{2539}", 0.0, "wrong_answer"),
            Example("It is 2538.", 0.0, "no_answer"),
        ),
        source='rows `{"ability": "math", "question": "...", "answer": ...}` and `{"ability": "code", "question": '
        '"...", "tests": ..., "solution": "..."}`',
        ground_truth="a number or LaTeX for mathematics, the tests as JSON for programs",
        rewards=("math", "code"),
        pages="the rewards for [mathematics](../rewards/math.md), [code](../rewards/code.md) and both "
        "[together](../rewards/hybrid.md)",
        index=-1,
    ),
    "bfcl": TaskNotes(
        title="BFCL",
        about="Single-turn cases of the Berkeley Function-Calling Leaderboard: one request, one or more tools, and the "
        "right calls, or none. They come from the package `bfcl-eval` 2026.3.23 (1.9 MB), which is fetched from the "
        "package index once, by its digest; its code does not run. The reward honours every possible answer that BFCL "
        "lists, as [its AST checker does](../rewards/tool_calls.md). Java and JavaScript cases are not used: their "
        "arguments are not JSON values.\n\n"
        "The cases are divided once and for all. Of five categories, about 70 % of the cases, by a hash of the case's "
        "id, are for training; the others are the test split (`held_out`). Five more categories, with requests of real "
        "users, are never trained on: they are the test split of a second task, `bfcl_unseen`, which is otherwise the "
        "same and reads the same prepared folder. BFCL asks the same in `simple_python` and in `multiple`: a training "
        "case whose request is also a test case is dropped (43 cases). Four cases have no right answer, for the "
        f"official checker either, and are dropped too.\n\n{_BFCL_COUNTS}\n\n"
        "The prompts need no chat template with tools: the tools are part of the system message. With SmolLM2's "
        "tokenizer and descriptions of at most 120 characters, prompts have a median of 334 tokens in training (95 %: "
        "705, longest: 1,032), 335 in `held_out` (667, 962) and 805 in `unseen` (1,756, 5,995); gold answers 85 (257, "
        "383), 81 (252, 466) and 62 (125, 412). The recipes `tool_calls_smollm2*` leave out cases with more than 1,024 "
        "tokens in the prompt or 192 in the gold answer: 697 training, 322 held-out and 1,521 unseen cases remain.\n\n"
        "A gold answer has a short thinking text, which is made by rules: which tool fits, how often it is called, and "
        "which arguments have a value that is in the request, that is the tool's default, or that is to be worked out. "
        "Of the allowed values, one whose text is in the request is preferred; arguments that may be left out are left "
        "out.\n\n"
        "The ids of the training cases are kept in `provenance.json` of the run, and as `trained_cases.json` in every "
        "model folder that it writes, also after `egpo merge` and `egpo push`. The cold start's are included. "
        "[`egpo eval bfcl`](../bfcl.md) leaves these cases out, and says how many.",
        settings={
            "mode": "Mode of the reward, see above.",
            "instruction": 'Text before the tools. `null`: one that asks for thinking. `""`: none.',
            "description_chars": "Longest description of a tool or argument in the prompt, in characters. It is cut at "
            "the end of a sentence or word. `null`: no limit; 0: no descriptions.",
            "tokenizer": "Model whose tokens the next two settings count.",
            "max_prompt_tokens": "Cases with longer prompts are left out, and counted by `egpo prepare`.",
            "max_answer_tokens": "Cases with longer gold answers are left out, and counted by `egpo prepare`.",
        },
        modes={
            "strict_think": "1 if a well-formed thinking block comes first and every call is right, else 0",
            "plain": "1 if every call is right, else 0; thinking is not required",
            "shaped": "0.1 for the form plus 1 for the calls",
        },
        examples=(
            Example(
                '<think>Search.</think><tool_call>{"name": "lawsuit_search", "arguments": '
                '{"company": "Google", "start_date": "01-01-2021", "location": "California"}}</tool_call>',
                1.0,
                "correct",
            ),
            Example(
                '<think>Search.</think><tool_call>{"name": "lawsuit_search", "arguments": {"company": "GOOG", '
                '"start_date": "january 1 2021", "location": "California", "status": "ongoing"}}</tool_call>',
                1.0,
                "correct",
            ),
            Example(
                '<think>Search.</think><tool_call>{"name": "lawsuit_search", "arguments": '
                '{"company": "Google", "start_date": 2021, "location": "California"}}</tool_call>',
                0.0,
                "wrong_type",
            ),
            Example(
                '<think>Search.</think><tool_call>{"name": "lawsuit_search", "arguments": '
                '{"company": "Google", "location": "California"}}</tool_call>',
                0.0,
                "missing_argument",
            ),
            Example("<think>No tool fits.</think>I cannot search for lawsuits.", 0.0, "no_call"),
        ),
        index=6,
        source="the folder `bfcl_eval/data` of an installed `bfcl-eval`, or its wheel; needed only on a machine "
        "without the package index",
        ground_truth="BFCL's possible answers as JSON: for each call, the allowed values of each argument, where an "
        "empty text means that it may be left out",
        rewards=("tool_calls",),
        pages="[the reward in detail](../rewards/tool_calls.md), [evaluation on BFCL](../bfcl.md)",
    ),
}
