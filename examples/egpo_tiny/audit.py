"""Judges examples of each habit of the corpus, and prints the fraction that is correct.

    python -m examples.egpo_tiny.audit --count 200

The sum over habits of a habit's share times its correct fraction is about the accuracy of a model that has learned
exactly the corpus.
"""

import argparse
import random
from dataclasses import dataclass

from examples.egpo_tiny.corpus import draw_example
from examples.egpo_tiny.lessons import LESSONS, Lesson


@dataclass(frozen=True)
class Judged:
    """A habit, its share of the lesson, and the fractions of its examples that are correct and that could not be
    judged."""

    habit: str
    share: float
    right_frac: float
    failed_frac: float


def judge_habits(lesson: Lesson, count: int, seed: int = 0, **settings: object) -> list[Judged]:
    """Judge `count` examples of each habit of a lesson. `settings` are passed to the task."""
    task, rng = lesson.load(**settings), random.Random(seed)
    judged = []
    for habit, share in lesson.habits.items():
        drawn = [draw_example(lesson, rng, habit) for _ in range(count)]
        verdicts = [task.judge(example.problem, example.response) for example in drawn]
        right, failed = sum(v.correct for v in verdicts), sum(v.failed for v in verdicts)
        judged.append(Judged(habit, share, right / count, failed / count))
    return judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="Number of examples per habit. Default: 100.")
    count = parser.parse_args().count
    for lesson in LESSONS:
        judged = judge_habits(lesson, count)
        print(f"{lesson.name}: {sum(one.share * one.right_frac for one in judged):.2f} right")
        for one in judged:
            print(f"  {one.habit:28} share {one.share:.3f}  right {one.right_frac:.2f}  failed {one.failed_frac:.2f}")


if __name__ == "__main__":
    main()
