"""What a pass of BFCL left on disk, case by case.

Passes of BFCL as an evaluation like any other: a case is a problem, a pass is a sample of it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from egpo.errors import EgpoError
from egpo.evals.bfcl.passes import BfclSettings
from egpo.evals.evaluate import Evaluation, Exam
from egpo.evals.figures import figures_of
from egpo.evals.intervals import SHARES, Estimate, default_ks, mean_with_interval
from egpo.evals.responses import Sampling
from egpo.evals.samples import SampleRecord, pass_at_k_by_problem, tally_problems

RESULTS, SCORES = "BFCL_v4_*_result.json", "BFCL_v4_*_score.json"
FAILED = "Error during inference"


@dataclass(frozen=True)
class CaseVerdict:
    """`reason` is `correct`, BFCL's name of the error, or `generation_failed`: then nothing was learnt of the
    model, and `answer` says what happened."""

    id: str
    category: str
    correct: bool
    reason: str
    failed: bool
    prompt: str
    answer: Any
    num_tokens: int | None


def read_verdicts(work: Path) -> list[CaseVerdict]:
    """Every case that was asked. BFCL's score files list the wrong ones alone: the others were right."""
    verdicts = []
    for results in sorted((work / "result").rglob(RESULTS)):
        category = results.name.removeprefix("BFCL_v4_").removesuffix("_result.json")
        found = list(_lines(results))
        lines = {str(line["id"]): line for line in found}
        if len(lines) < len(found):
            raise EgpoError(f"{len(found) - len(lines)} cases of {category} are there twice", where=str(results))
        wrong = _wrong(work / "score", category, len(lines))
        verdicts += [_verdict(line, category, wrong.get(case)) for case, line in lines.items()]
    if not verdicts:
        raise EgpoError("BFCL left no results", where=str(work), fix="see bfcl.log there")
    return verdicts


def require_asked(
    verdicts: Sequence[CaseVerdict], categories: Sequence[str], cases: Mapping[str, Sequence[str]]
) -> None:
    """An EgpoError where a category, or a case that was named, has no result: BFCL passes over what it cannot write."""
    found = {(verdict.category, verdict.id) for verdict in verdicts}
    missing = sorted({*categories} - {category for category, _ in found})
    missing += [case for category, ids in cases.items() for case in ids if (category, case) not in found]
    if missing:
        raise EgpoError(f"BFCL left no result of {', '.join(missing[:5])}", where="BFCL", fix="see its bfcl.log")


def _wrong(scores: Path, category: str, num_cases: int) -> dict[str, str]:
    """Ids of wrong cases, with the kind of the error. The first line is a summary, with which they must agree."""
    found = list(scores.rglob(f"BFCL_v4_{category}_score.json"))
    if len(found) != 1:
        what = f"BFCL left {len(found)} score files of {category}"
        raise EgpoError(what, where=str(scores), fix="see bfcl.log beside it")
    summary, *entries = _lines(found[0])
    wrong = {str(entry["id"]): _kind(entry) for entry in entries}
    if (summary["total_count"], summary["total_count"] - summary["correct_count"]) != (num_cases, len(wrong)):
        raise EgpoError(f"the summary and the cases of {category} differ", where=str(found[0]))
    return wrong


def _kind(entry: dict[str, Any]) -> str:
    """`multi_turn:instance_state_mismatch` and the like; `irrelevance` cases have none."""
    error = entry.get("error")
    kind = error.get("error_type") if isinstance(error, dict) else entry.get("error_type")
    return str(kind or "wrong")


def _verdict(line: dict[str, Any], category: str, error: str | None) -> CaseVerdict:
    answer = line["result"]
    # With its traceback: a model may write these words, too, and is then wrong.
    failed = isinstance(answer, str) and answer.startswith(FAILED) and "traceback" in line
    return CaseVerdict(
        id=str(line["id"]),
        category=category,
        correct=error is None and not failed,
        reason="generation_failed" if failed else error or "correct",
        failed=failed,
        prompt=_first_prompt(line.get("inference_log")),
        answer=answer,
        num_tokens=_total(line.get("output_token_count")),
    )


def _first_prompt(log: Any) -> str:
    """The first prompt that was sent, out of the log's nested lists."""
    if isinstance(log, dict):
        if isinstance(prompt := log.get("formatted_prompt"), str):
            return prompt
        log = list(log.values())
    if isinstance(log, list):
        return next((found for part in log if (found := _first_prompt(part))), "")
    return ""


def _total(counts: Any) -> int | None:
    """A number, or lists of them by turn and step."""
    if isinstance(counts, list):
        parts = [_total(part) for part in counts]
        return sum(part for part in parts if part is not None)
    return int(counts) if isinstance(counts, int | float) else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


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


def evaluation_of(label: str, asked: BfclSettings, passes: Sequence[Sequence[CaseVerdict]]) -> Evaluation:
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


def category_figures(samples: Sequence[SampleRecord]) -> dict[str, Any]:
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
