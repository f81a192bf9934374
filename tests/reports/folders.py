"""Run folders for reports, written by what writes them in a run."""

from egpo.runs.dump import RolloutRecord, TokenAlternatives, token_spans, write_dump
from egpo.runs.folder import RunFolder
from egpo.runs.health import Note, NoteStream
from egpo.runs.metrics import MetricStream
from egpo.runs.provenance import Provenance, describe_launch, write_provenance

CONFIG = """
name: {name}
steps: 100
algorithm: {{estimator: {estimator}}}
task: {{name: countdown}}
"""
SOURCE = "val-core/countdown/acc/mean@1"
HOSTILE = (
    "<script>window.pwned = 1; alert(1)</script>",
    "</script><script>window.pwned = 2</script>",
    "<img src=x onerror='window.pwned = 3'>",
    "<!-- <script> ",
    "&lt;b&gt; &amp; \u2028\u2029 \U0001f389 日本語",
    "\ud800 alone",
    "{{ 7 * 7 }} {% for %}",
    "\u202eturned",
)


def write_run(path, *, steps=12, estimator="grpo", dumps=(1, 5, 12), records=None, notes=()):
    """A run of reward that rises from 0 to 1, with validation every fourth step."""
    config = CONFIG.format(name=path.name, estimator=estimator)
    with RunFolder.create(path, config) as folder:
        write_provenance(folder.provenance, Provenance(7, {"train": "0" * 64}, describe_launch(threads=1)))
        write_metrics(folder, range(steps + 1), steps)
        for step in dumps:
            write_dump(folder.rollouts_of(step), records or group_records(step))
        for note in notes:
            NoteStream(folder.health).append(note)
    return path


def write_metrics(folder, steps, last):
    stream, timings = MetricStream(folder.metrics), MetricStream(folder.timings)
    for step in steps:
        validation = {SOURCE: step / max(1, last)} if step % 4 == 0 else {}
        stream.append(step, (training_metrics(step, last) if step else {}) | validation)
        timings.append(step, {"timing_s/step": 2.0, "perf/throughput": 1000.0})


def training_metrics(step, last):
    return {
        "critic/score/mean": step / last,
        "critic/acc/mean": step / last,
        "entropy/thinking": 2 - step / last,
        "entropy/answer": 0.5,
        "entropy/response": 1.5,
        "actor/kl": step / 1000,
        "actor/grad_norm": 0.1,
        "actor/lr": 1e-6,
        "response_length/mean": 50.0 + step,
        "response_length/clip_ratio": 0.0,
        "groups/zero_variance_frac": 0.25,
    }


def group_records(step, texts=("<think>so</think> 4", *HOSTILE), problem="problem 1"):
    """Each text is a response: the first right, the others wrong. Every third character starts a token."""
    return [record(step, text, sample, problem) for sample, text in enumerate(texts)]


def record(step, text, sample, problem="problem 1"):
    tokens = [text[start : start + 3] for start in range(0, len(text), 3)] + [""]
    half = len(tokens) // 2
    return RolloutRecord(
        input=f"What is 2 + 2? {HOSTILE[1]}",
        output=text,
        gts={"target": 4, "text": HOSTILE[2]},
        score=float(sample == 0),
        step=step,
        acc=sample == 0,
        reason="correct" if sample == 0 else "wrong_value" if sample % 2 else "no_answer",
        problem=problem,
        sample=sample,
        advantage=0.5 - sample,
        finished=sample != 2,
        segments={"thinking": 0.7, "answer": None},
        tokens=tokens,
        token_entropy=[None, *(0.25 * place for place in range(1, len(tokens)))],
        token_segment=token_spans(["thinking"] * half + ["answer"] * (len(tokens) - half)),
        token_alternatives=[TokenAlternatives(1, 1, ((HOSTILE[2], 0.75), (tokens[1], 0.125)))]
        if len(tokens) > 2
        else (),
    )


def note(rule="kl_high", severity="danger", step=3):
    return Note(step, rule, severity, f"<b>KL</b> is high: {HOSTILE[2]}", "lower `update.lr`")
