"""The generated part of docs/results.md: what was asked, what came out, every table, the cost and the command.

Sentences that give an answer are made from the numbers. Everything else must stay true whatever the numbers are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from egpo.comparisons.result import Contrast, p_text, signed
from egpo.runs.stored import read_json_object
from website.evidence.groups import BASE, COLD_START, Evidence, Exam, Group, Row, Tested
from website.evidence.sittings import Sitting, training_minutes
from website.evidence.stripping import BEFORE_FILE

NOTHING = "not distinguishable"


def page(evidence: Evidence) -> str:
    """Return the generated part of the page, in Markdown."""
    parts = [
        *_question(evidence),
        "### What came out",
        *_answers(evidence),
        *(part for group in evidence.groups for part in _task(evidence, group)),
        "### Differences between estimators",
        *_differences(evidence),
        "### Cost, and how to run it again",
        *_cost(evidence),
    ]
    return "\n\n".join(parts) + "\n"


def tables(evidence: Evidence) -> str:
    """Return only the accuracies and the differences between estimators, in Markdown."""
    return "\n\n".join([*(_accuracies(evidence, exam) for exam in evidence.exams), next(_differences(evidence))]) + "\n"


def _question(evidence: Evidence) -> Iterator[str]:
    groups, runs = evidence.groups, evidence.runs
    estimators = list(dict.fromkeys(name for group in groups for name in group.by_estimator))
    model = _model(groups[0])
    dates = sorted({sitting.date for sitting in evidence.sittings.sittings})
    tasks = f"{len(groups)} task{'s' * (len(groups) > 1)}"
    yield f"## {model}: {tasks}, {len(estimators)} estimators ({' and '.join(dates)})"
    seeds = sorted({len(group.seeds) for group in groups})
    yield (
        f"The question: trained from one cold start on the same data with the same settings, do {_listed(estimators)} "
        f"lead to different accuracies on problems that were not trained on? {len(runs)} runs, "
        f"{' or '.join(map(str, seeds))} seeds of each estimator on {_listed([g.task for g in groups])}. Within a task "
        "only the estimator and the seed differ, which `egpo compare` checks by settings and by digests of the data."
    )
    yield (
        "Intervals are 95 % and are over seeds and problems, as in [comparing runs](comparing.md); those of the models "
        f"before training are over problems. The p-values have Holm's correction for all {len(evidence.tested)} "
        "contrasts of this section, and the smallest detectable difference (80 % power) is at the corrected level. "
        "Everything here is computed by `make evidence` from the files in `docs/evidence`, and a test compares the two."
    )


def _answers(evidence: Evidence) -> Iterator[str]:
    between = [one for one in evidence.tested if one.is_of_estimators]
    found = [one for one in between if one.contrast.finding != NOTHING]
    if found:
        listed = "; ".join(
            f"on {one.exam.task}, {one.exam.kind}, `{one.contrast.other}` is {one.contrast.finding} than "
            f"`{one.contrast.base}` by {_interval(one.contrast)} points"
            for one in found
        )
        count = f"{len(found)} of the {len(between)} differences between estimators"
        yield f"**{count} {'is' if len(found) == 1 else 'are'} distinguishable from zero:** {listed}."
    else:
        yield f"**None of the {len(between)} differences between estimators is distinguishable from zero.**"
    yield f"{_reach(between)} A smaller true difference may exist and would often not be found by this experiment."
    for group in evidence.groups:
        yield _gains(evidence, group)


def _reach(between: Sequence[Tested]) -> str:
    known = [one.contrast.detectable for one in between if one.contrast.detectable is not None]
    if not known:
        return "The smallest detectable difference is unknown."
    low, high = min(known), max(known)
    span = f"{100 * low:.1f}" if f"{low:.3f}" == f"{high:.3f}" else f"{100 * low:.1f} to {100 * high:.1f}"
    return f"The smallest detectable difference is {span} points, depending on task and decoding."


def _gains(evidence: Evidence, group: Group) -> str:
    """Say in one paragraph what the cold start and the training changed on one task."""
    sentences = []
    for exam in _exams(evidence, group):
        gains = evidence.of(exam, estimators=False)
        parts = [
            f"{_named(one.contrast.other)} {_interval(one.contrast)}, {_gain_word(one.contrast)}"
            for one in gains
            if one.contrast.base != BASE or len(exam.rows) == 1 + len(group.by_estimator)
        ]
        start = next((one.contrast.base for one in gains if one.contrast.other != COLD_START), COLD_START)
        sentences.append(f"{exam.kind}, points over the {start}: {'; '.join(parts)}")
    return f"`{group.task}`, gain of training. {'. '.join(s[0].upper() + s[1:] for s in sentences)}."


def _gain_word(contrast: Contrast) -> str:
    return {"better": "a gain", "worse": "a loss"}.get(contrast.finding, "not distinguishable from none")


def _task(evidence: Evidence, group: Group) -> Iterator[str]:
    yield f"### {group.task}"
    yield _design(group)
    for exam in _exams(evidence, group):
        yield _accuracies(evidence, exam)
    yield f"![Learning curves of the estimators on {group.task}](images/{image_name(group)})"
    yield from _remarks(evidence, group)


def image_name(group: Group) -> str:
    return f"evidence_{group.task}.svg"


def _design(group: Group) -> str:
    config = group.runs[0].config
    rollout, update, settings = config["rollout"], config["update"], config["task"]["settings"]
    problems = f"{settings['train']:,} training problems; " if isinstance(settings.get("train"), int) else ""
    return (
        f"{problems}{group.runs[0].planned_steps} steps of {rollout['prompts']} problems with {rollout['n']} responses "
        f"of up to {rollout['max_response_tokens']} tokens, learning rate {float(update['lr']):g}. All settings are in "
        f"`docs/evidence/{group.task}/*/config.yaml`."
    )


def _accuracies(evidence: Evidence, exam: Exam) -> str:
    gains = {one.contrast.other: one.contrast for one in evidence.of(exam, estimators=False)}
    decoding = "greedy" if exam.is_greedy else f"sampled, {exam.num_samples} responses each"
    head = [f"{exam.num_problems} test problems, {decoding}", "accuracy", "by seed", "gain over", "points", "p (Holm)"]
    rows = [_accuracy_cells(row, gains.get(row.label)) for row in exam.rows]
    return markdown_table(head, rows)


def _accuracy_cells(row: Row, gain: Contrast | None) -> list[str]:
    accuracy = f"{100 * row.accuracy:.1f} %"
    if row.estimate is not None and row.estimate.low is not None and row.estimate.high is not None:
        accuracy += f" ({100 * row.estimate.low:.1f} to {100 * row.estimate.high:.1f})"
    seeds = ", ".join(f"{100 * value:.1f}" for value in row.by_seed)
    tail = ["", "", ""] if gain is None else [gain.base, _interval(gain), p_text(gain.adjusted_p).removeprefix("= ")]
    return [_named(row.label), accuracy, seeds, *tail]


def _differences(evidence: Evidence) -> Iterator[str]:
    head = ["task", "decoding", "contrast", "points", "p (Holm)", "smallest detectable", "finding"]
    yield markdown_table(head, [_difference_cells(one) for one in evidence.tested if one.is_of_estimators])
    yield (
        "To compare one task with the command line, which corrects for the contrasts of that task only: "
        f"`egpo compare docs/evidence/{evidence.groups[0].task}/* --eval {evidence.exams[0].name}`."
    )


def _difference_cells(one: Tested) -> list[str]:
    contrast = one.contrast
    detectable = "unknown" if contrast.detectable is None else f"{100 * contrast.detectable:.1f}"
    pair = f"`{contrast.other}` - `{contrast.base}`"
    p_value = p_text(contrast.adjusted_p).removeprefix("= ")
    return [one.exam.task, one.exam.kind, pair, _interval(contrast), p_value, detectable, contrast.finding]


def _remarks(evidence: Evidence, group: Group) -> Iterator[str]:
    """Say what a reader should know about the runs: health warnings, notes of `egpo compare`, unequal copies."""
    rules = Counter(rule for run in group.runs for rule in {note.rule for note in run.notes})
    listed = ", ".join(f"`{rule}` in {count}" for rule, count in sorted(rules.items()))
    lines = [f"Health warnings, in how many of the {len(group.runs)} runs: {listed or 'none'}."]
    notes = dict.fromkeys(note for exam in _exams(evidence, group) for note in exam.notes)
    lines += notes
    copies = Counter(str(sorted(read_json_object(run.folder.path / BEFORE_FILE).items())) for run in group.runs)
    if len(copies) > 1:
        lines.append(
            f"The models before training were evaluated {len(copies)} times with unequal outcomes; the evaluation of "
            "the first run is shown and compared with."
        )
    yield "\n".join(f"- {line}" for line in lines)


def _cost(evidence: Evidence) -> Iterator[str]:
    sittings = evidence.sittings.sittings
    runs = sum(len(sitting.runs) for sitting in sittings)
    total = sum(sitting.gpu_minutes for sitting in sittings)
    yield (
        f"{total:.0f} GPU-minutes in all for {runs} runs with their evaluations and the cold starts: "
        f"{total / runs:.1f} GPU-minutes for each."
    )
    head = ["date", "machine", "commit", "code", "runs", "at a time", "minutes", "GPU-minutes", "for each run"]
    yield markdown_table(head, map(_sitting_cells, sittings))
    for same in evidence.sittings.same_bits:
        yield f"The codes {_listed(same.codes)} give the same bits: {same.shown_by}"
    head = ["training of one run, minutes", *(f"`{name}`" for name in evidence.groups[0].by_estimator)]
    yield markdown_table(head, [[group.task, *_minutes(group)] for group in evidence.groups])
    yield (
        "These are means over the seeds, by a clock, while other runs may have used the same machine, and without the "
        "evaluations. All runs again, and this section from their folders:"
    )
    commands = [*evidence.sittings.rerun.strip().splitlines(), "python -m website.evidence strip runs runs.tar.gz"]
    yield "```\n" + "\n".join(commands) + "\n```"


def _sitting_cells(sitting: Sitting) -> list[str]:
    return [
        sitting.date,
        sitting.hardware,
        sitting.commit[:12],
        sitting.code,
        str(len(sitting.runs)),
        str(sitting.runs_at_a_time),
        f"{sitting.wall_minutes:.1f}",
        f"{sitting.gpu_minutes:.1f}",
        f"{sitting.gpu_minutes / len(sitting.runs):.1f}",
    ]


def _minutes(group: Group) -> list[str]:
    return [f"{fmean(map(training_minutes, runs)):.1f}" for runs in group.by_estimator.values()]


def _exams(evidence: Evidence, group: Group) -> list[Exam]:
    return [exam for exam in evidence.exams if exam.task == group.task]


def _model(group: Group) -> str:
    """Return the name of the base model, as its evaluation has it."""
    label = group.before[0].label if group.before else group.runs[0].setting("model", "path")
    return label.removeprefix(f"{COLD_START} of ")


def _interval(contrast: Contrast) -> str:
    value = signed(contrast.delta, is_share=True)
    if contrast.low is None or contrast.high is None:
        return f"{value} (no interval: nothing varies)"
    return f"{value} ({signed(contrast.low, is_share=True)} to {signed(contrast.high, is_share=True)})"


def _named(label: str) -> str:
    return label if label in (BASE, COLD_START) else f"`{label}`"


def _listed(names: Sequence[str]) -> str:
    marked = [f"`{name}`" for name in names]
    return " and ".join([", ".join(marked[:-1]), marked[-1]]) if len(marked) > 1 else "".join(marked)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines])
