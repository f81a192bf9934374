"""Tasks: each has problems, a prompt per problem, a judge of responses, and a gold answer per problem.

    protocol.py       `Task` and `Problem`, the check of gold answers, and `judge_texts` with its time limits
    loading.py        loads a task by its name in the table TASKS, or a user's own task as `module:Class`
    sourced.py        base class of the built-in tasks: problems from a prepared directory or from a generator
    countdown.py, gsm8k.py, function_calling.py, code.py, mixed.py, toolbox.py    the built-in tasks, with generators
    bfcl_multi_turn.py    BFCL's multi-turn cases; episodes.py has what tasks of several turns share
    dataset.py        a user's rows with a prompt template and a reward function; dataset_rows.py reads the rows
    tool_catalogue.py, program_problems.py, programs.py    the tools and programs that the generators draw from
    preparation.py    `egpo prepare`: a task's problems written as parquet
    gold.py           writes an answer that the reward accepts, for rows that have only a ground truth

A gold answer is a response that earns the full reward. A task turns rows of the package `data` into problems and
prompts for an engine, and its `judge` scores the responses with the package `rewards`. To add a built-in task, subclass
`SourcedTask` in its own file and add a row to TASKS.
"""

from egpo.tasks.dataset import Dataset
from egpo.tasks.loading import TASKS, load_task
from egpo.tasks.protocol import Problem, Task, check_gold

__all__ = ["TASKS", "Dataset", "Problem", "Task", "check_gold", "load_task"]
