"""A model that says what it is told, and what a probe makes of it."""

from egpo.evals.evaluate import Exam
from egpo.evals.intervals import default_ks
from egpo.evals.responses import Response, Sampling
from egpo.probes.probe import draw_exam, probe

TASK = "tests.evals.sum_task:Sums"


class Scripted:
    """`say(problem, sample)` is the response to a problem; None is a failure of the server."""

    label = "scripted"

    def __init__(self, say, **known):
        self._say, self._known = say, known

    def respond(self, task, problems, sampling, watch):
        return [
            Response(
                index, sample, "?", text or "", failure=None if text is not None else "server_error", **self._known
            )
            for index, problem in enumerate(problems)
            for sample in range(sampling.n)
            for text in [self._say(problem, sample)]
        ]


def paper_of(count, n, num_problems=None, seed=0, task=TASK, **settings):
    sampling = Sampling(n=n, seed=seed)
    settings = settings if task != TASK else {"count": count}
    return draw_exam(Exam(task, settings, "train", num_problems, sampling, default_ks(n)))


def number_of(problem):
    return int(problem.ground_truth) - 1


def right_times(problem, times, sample):
    """Right in the first `times` samples."""
    return problem.ground_truth if sample < times else "0"


def probed(times, n, **known):
    """`times[i]` of the n responses to problem i are right."""
    say = Scripted(lambda problem, sample: right_times(problem, times[number_of(problem)], sample), **known)
    return probe(say, paper_of(len(times), n))
