"""Passes of BFCL as an evaluation like any other: a case is a problem, a pass is a sample of it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from egpo.errors import EgpoError
from egpo.evals.bfcl.job import Asked
from egpo.evals.bfcl.verdicts import CaseVerdict
from egpo.evals.bootstrap import SHARES, Estimate, mean_with_interval
from egpo.evals.evaluate import Evaluation, Exam
from egpo.evals.evaluation import figures_of
from egpo.evals.passk import default_ks
from egpo.evals.responses import Sampling
from egpo.evals.samples import SampleRecord
from egpo.evals.tallies import pass_at_k_by_problem, tally_problems

VERSION = "bfcl-eval 2026.3.23, BFCL v4"
_SHOWN_FAILURES = 5


@dataclass(frozen=True)
class CategoryFigures:
    """`accuracy` has an interval over cases; `by_pass` is that of each pass, and `spread` their standard deviation."""

    category: str
    accuracy: Estimate
    by_pass: tuple[float, ...]
    num_cases: int

    @property
    def spread(self) -> float | None:
        return stdev(self.by_pass) if len(self.by_pass) > 1 else None


def evaluation_of(label: str, asked: Asked, passes: Sequence[Sequence[CaseVerdict]]) -> Evaluation:
    """Of one pass or several over the same cases. Failed generations are no answers: no figure counts them."""
    samples = tuple(_record(verdict, number) for number, verdicts in enumerate(passes) for verdict in verdicts)
    exam = Exam(
        "bfcl",
        {
            "categories": list(asked.categories),
            "prompt_format": asked.prompt_format,
            "instruction": asked.instruction,
            "version": VERSION,
        },
        sampling=Sampling(n=len(passes), temperature=asked.temperature, max_tokens=asked.other_max_tokens),
        ks=default_ks(len(passes)),
    )
    figures = figures_of(samples, exam.ks)
    return Evaluation(label, exam, figures, samples, num_left_out=0, data=_digest(samples))


def figures_by_category(samples: Sequence[SampleRecord]) -> list[CategoryFigures]:
    """In the order in which they were asked."""
    names = dict.fromkeys(sample.ability for sample in samples)
    return [figures for name in names if (figures := _category(name, [s for s in samples if s.ability == name]))]


def as_more(samples: Sequence[SampleRecord]) -> dict[str, Any]:
    """What the JSON of a BFCL evaluation has besides the usual."""
    return {"categories": [asdict(part) | {"spread": part.spread} for part in figures_by_category(samples)]}


def require_generated(passes: Sequence[Sequence[CaseVerdict]], where: str) -> None:
    """An EgpoError where BFCL would have counted a failure of the server as a wrong answer of the model."""
    failed = [verdict for verdicts in passes for verdict in verdicts if verdict.failed]
    if failed:
        shown = "; ".join(f"{verdict.id}: {str(verdict.answer)[:200]}" for verdict in failed[:_SHOWN_FAILURES])
        total = sum(map(len, passes))
        raise EgpoError(
            f"{len(failed)} of {total} generations failed, which BFCL scores as wrong ({shown})",
            where=where,
            fix="mend the server (a context that is too short, a wrong name?), or leave them out with --allow-failed",
        )


def _category(name: str, samples: Sequence[SampleRecord]) -> CategoryFigures | None:
    shares = pass_at_k_by_problem(tally_problems(samples), 1)
    accuracy = mean_with_interval(shares.values(), seed=0, bounds=SHARES)
    if accuracy is None:
        return None
    passes: dict[int, list[float]] = {}
    for sample in samples:
        if not sample.failed:
            passes.setdefault(sample.sample, []).append(float(sample.acc))
    return CategoryFigures(name, accuracy, tuple(fmean(found) for found in passes.values()), len(shares))


def _record(verdict: CaseVerdict, number: int) -> SampleRecord:
    text = verdict.answer if isinstance(verdict.answer, str) else json.dumps(verdict.answer, ensure_ascii=False)
    return SampleRecord(
        problem=verdict.id,
        sample=number,
        input=verdict.prompt,
        output=text,
        gts=None,
        score=float(verdict.correct),
        acc=verdict.correct,
        reason=verdict.reason,
        failed=verdict.failed,
        num_tokens=verdict.num_tokens,
        data_source="bfcl",
        ability=verdict.category,
    )


def _digest(samples: Sequence[SampleRecord]) -> str:
    """Equal digests, equal cases of an equal version."""
    cases: Mapping[str, None] = dict.fromkeys(sample.problem for sample in samples)
    return hashlib.sha256("\n".join([VERSION, *sorted(cases)]).encode()).hexdigest()
