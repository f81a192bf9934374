"""Reads BFCL's result and score files, and converts them to an `Evaluation`.

Each case becomes a problem of the evaluation. The answers that the passes of BFCL gave to it become its samples.
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
from egpo.evals.figures import figures_of, pass_at_k_by_problem, tally_problems
from egpo.evals.intervals import SHARES, Estimate, default_ks, mean_with_interval
from egpo.evals.responses import SampleRecord, Sampling

RESULTS, SCORES = "BFCL_v4_*_result.json", "BFCL_v4_*_score.json"
FAILED = "Error during inference"


@dataclass(frozen=True)
class CaseVerdict:
    """The verdict on the answer to one case of BFCL.

    `reason` is `correct`, BFCL's name of the error, or `generation_failed`. If `failed` is true, the generation failed:
    this is no error of the model, and `answer` is the error message.
    """

    id: str
    category: str
    correct: bool
    reason: str
    failed: bool
    prompt: str
    answer: Any
    num_tokens: int | None


def read_verdicts(work: Path) -> list[CaseVerdict]:
    """Return the verdict on every case of the pass in the folder `work`.

    BFCL's score files list only the wrong cases; all others in its result files are correct.
    """
    verdicts = []
    for results in sorted((work / "result").rglob(RESULTS)):
        category = results.name.removeprefix("BFCL_v4_").removesuffix("_result.json")
        found = list(_lines(results))
        lines = {str(line["id"]): line for line in found}
        if len(lines) < len(found):
            raise EgpoError(f"{len(found) - len(lines)} cases of {category} occur more than once", where=str(results))
        wrong = _wrong(work / "score", category, len(lines))
        verdicts += [_verdict(line, category, wrong.get(case)) for case, line in lines.items()]
    if not verdicts:
        raise EgpoError("BFCL wrote no results", where=str(work), fix="see bfcl.log in this folder")
    return verdicts


def require_asked(
    verdicts: Sequence[CaseVerdict], categories: Sequence[str], cases: Mapping[str, Sequence[str]]
) -> None:
    """Raise EgpoError if a category or a requested case has no result: BFCL skips results that it cannot write."""
    found = {(verdict.category, verdict.id) for verdict in verdicts}
    missing = sorted({*categories} - {category for category, _ in found})
    missing += [case for category, ids in cases.items() for case in ids if (category, case) not in found]
    if missing:
        fix = "see bfcl.log in the folder of the pass"
        raise EgpoError(f"BFCL wrote no result for {', '.join(missing[:5])}", where="BFCL", fix=fix)


def _wrong(scores: Path, category: str, num_cases: int) -> dict[str, str]:
    """Return the ids of the wrong cases of a category, each with BFCL's name of the error.

    Raise EgpoError if their number differs from that in the summary in the first line of the score file.
    """
    found = list(scores.rglob(f"BFCL_v4_{category}_score.json"))
    if len(found) != 1:
        what = f"BFCL wrote {len(found)} score files for {category} instead of one"
        raise EgpoError(what, where=str(scores), fix="see bfcl.log in the parent folder")
    summary, *entries = _lines(found[0])
    wrong = {str(entry["id"]): _kind(entry) for entry in entries}
    if (summary["total_count"], summary["total_count"] - summary["correct_count"]) != (num_cases, len(wrong)):
        what = f"the counts in the first line do not agree with the cases of {category} in BFCL's files"
        raise EgpoError(what, where=str(found[0]))
    return wrong


def _kind(entry: dict[str, Any]) -> str:
    """Return BFCL's name of the error, such as `multi_turn:instance_state_mismatch`.

    Return `wrong` if there is no name, as in the category `irrelevance`.
    """
    error = entry.get("error")
    kind = error.get("error_type") if isinstance(error, dict) else entry.get("error_type")
    return str(kind or "wrong")


def _verdict(line: dict[str, Any], category: str, error: str | None) -> CaseVerdict:
    answer = line["result"]
    # A model may also write the words of FAILED, as a wrong answer; only a real failure has a traceback.
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
    """Return the first prompt that was sent for a case, from the nested lists of BFCL's log; "" if there is none."""
    if isinstance(log, dict):
        if isinstance(prompt := log.get("formatted_prompt"), str):
            return prompt
        log = list(log.values())
    if isinstance(log, list):
        return next((found for part in log if (found := _first_prompt(part))), "")
    return ""


def _total(counts: Any) -> int | None:
    """Return the sum of token counts, which BFCL stores as a number or as nested lists; None if they are unknown."""
    if isinstance(counts, list):
        parts = [_total(part) for part in counts]
        return sum(part for part in parts if part is not None)
    return int(counts) if isinstance(counts, int | float) else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


LEFT_OUT = "trained_cases_left_out"
"""The setting of a stored evaluation with the number of cases that are left out: a model was trained on them."""
VERSION = "bfcl-eval 2026.3.23, BFCL v4"
_SHOWN_FAILURES = 5


@dataclass(frozen=True)
class CategoryFigures:
    """The accuracy in one category of BFCL.

    `accuracy` is the mean over cases with its interval. `by_pass` is the accuracy of each pass, and `spread` the
    standard deviation of these; None for a single pass.
    """

    category: str
    accuracy: Estimate
    by_pass: tuple[float, ...]
    num_cases: int

    @property
    def spread(self) -> float | None:
        return stdev(self.by_pass) if len(self.by_pass) > 1 else None


def evaluation_of(label: str, asked: BfclSettings, passes: Sequence[Sequence[CaseVerdict]]) -> Evaluation:
    """Combine several passes over the same cases into one evaluation. Its figures leave out failed generations."""
    samples = tuple(_record(verdict, number) for number, verdicts in enumerate(passes) for verdict in verdicts)
    exam = Exam(
        "bfcl",
        {
            "categories": list(asked.categories),
            "prompt_format": asked.prompt_format,
            "instruction": asked.instruction,
            "version": VERSION,
            **({LEFT_OUT: len(asked.left_out)} if asked.left_out else {}),
        },
        sampling=Sampling(n=len(passes), temperature=asked.temperature, max_tokens=asked.other_max_tokens),
        ks=default_ks(len(passes)),
    )
    figures = figures_of(samples, exam.ks)
    return Evaluation(label, exam, figures, samples, num_left_out=0, data=_digest(samples))


def figures_by_category(samples: Sequence[SampleRecord]) -> list[CategoryFigures]:
    """Return the accuracy in each category, in the order in which the categories occur in the samples."""
    names = dict.fromkeys(sample.ability for sample in samples)
    return [figures for name in names if (figures := _category(name, [s for s in samples if s.ability == name]))]


def category_figures(samples: Sequence[SampleRecord]) -> dict[str, Any]:
    """Return the field `categories`, which the JSON of a BFCL evaluation has in addition to the usual fields."""
    return {"categories": [asdict(part) | {"spread": part.spread} for part in figures_by_category(samples)]}


def require_generated(passes: Sequence[Sequence[CaseVerdict]], where: str) -> None:
    """Raise EgpoError if a generation failed: BFCL would count it as a wrong answer of the model."""
    failed = [verdict for verdicts in passes for verdict in verdicts if verdict.failed]
    if failed:
        shown = "; ".join(f"{verdict.id}: {str(verdict.answer)[:200]}" for verdict in failed[:_SHOWN_FAILURES])
        total = sum(map(len, passes))
        raise EgpoError(
            f"{len(failed)} of {total} generations failed, which BFCL scores as wrong ({shown})",
            where=where,
            fix="check the server's log, context length and model name, or leave these cases out with --allow-failed",
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
    """Return a digest of BFCL's version and the ids of the cases: equal digests mean equal cases."""
    cases: Mapping[str, None] = dict.fromkeys(sample.problem for sample in samples)
    return hashlib.sha256("\n".join([VERSION, *sorted(cases)]).encode()).hexdigest()
