"""Tasks: problems, prompts, judges and gold answers. A task from outside is named `module:Class`."""

from egpo.tasks.load import TASKS, load_task
from egpo.tasks.protocol import Problem, Task, check_gold

__all__ = ["TASKS", "Problem", "Task", "check_gold", "load_task"]
