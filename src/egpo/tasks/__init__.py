"""Tasks: each has problems, a prompt per problem, a judge of responses, and a gold answer per problem.

    protocol.py       `Task` and `Problem`, the check of gold answers, and `judge_texts` with its time limits
    loading.py        the table TASKS; a task from outside the package is named `module:Class`
    sourced.py        base class of the built-in tasks: problems from a prepared directory or from a generator
    countdown.py, gsm8k.py, function_calling.py, code.py, mixed.py    the built-in tasks with their generators
    tool_catalogue.py, program_problems.py, programs.py    the tools and programs that the generators draw from
    preparation.py    `egpo prepare`: a task's problems written as parquet
    gold.py           an answer that the reward accepts, for rows that have only a ground truth

Data passes from `data` (rows) through a task (problems, prompts) to an engine, and responses back through `judge` to
`rewards`. To add a built-in task, subclass `SourcedTask` in its own file and add a row to TASKS.
"""

from egpo.tasks.loading import TASKS, load_task
from egpo.tasks.protocol import Problem, Task, check_gold

__all__ = ["TASKS", "Problem", "Task", "check_gold", "load_task"]
