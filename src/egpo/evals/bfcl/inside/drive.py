"""Runs BFCL's generation and checker on one model, in BFCL's environment: `python drive.py job.json`.

`bfcl/passes.py` writes the job file. If the generation of a case fails, BFCL stores an answer that begins with "Error
during inference" and scores it 0. Such cases are generated again, and the caller reports an error if some still fail.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from statistics import StatisticsError
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

FAILED = "Error during inference"
NOT_READY = 3
"""Exit code if the server does not answer. The last line of the output is then the error message."""


def main(job_file: str) -> None:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    from bounded_answers import ServerNotReadyError
    from registry import register

    _refuse_code_of_models()
    register(job["served_name"], job["prompt_format"], job["timeout_s"], job.get("max_tokens"), job.get("context"))
    try:
        {"evaluate": evaluate, "prompt": prompt}[job["do"]](job)
    except ServerNotReadyError as error:
        print(error, flush=True)
        raise SystemExit(NOT_READY) from None


def _refuse_code_of_models() -> None:
    """Make transformers ignore `trust_remote_code=True`, which BFCL sets, so that no code of a model folder runs."""
    from transformers import AutoConfig, AutoTokenizer

    for loader in (AutoConfig, AutoTokenizer):
        load = loader.from_pretrained

        def without_code(*args: Any, _load: Any = load, **options: Any) -> Any:
            return _load(*args, **{**options, "trust_remote_code": False})

        loader.from_pretrained = without_code


def evaluate(job: dict[str, Any]) -> None:
    from bfcl_eval.eval_checker.eval_runner import main as check
    from registry import MODEL

    root = Path(os.environ["BFCL_PROJECT_ROOT"])
    for attempt in range(job["attempts"]):
        if attempt and not _forget_failures(root / "result"):
            break
        _generate(job, root)
    # After it has written the scores, BFCL computes the standard deviation of latencies, which fails for one case.
    with suppress(StatisticsError):
        check([MODEL], job["categories"], "result", "score", partial_eval=bool(job["cases"]))


def _generate(job: dict[str, Any], root: Path) -> None:
    from bfcl_eval._llm_response_generation import main as generate
    from registry import MODEL

    if job["cases"]:
        (root / "test_case_ids_to_generate.json").write_text(json.dumps(job["cases"]))
    generate(
        SimpleNamespace(
            model=[MODEL],
            test_category=job["categories"],
            temperature=job["temperature"],
            include_input_log=True,
            exclude_state_log=True,
            num_gpus=1,
            num_threads=job["threads"],
            gpu_memory_utilization=0.9,
            backend="vllm",
            skip_server_setup=True,
            local_model_path=None,
            result_dir="result",
            allow_overwrite=False,
            # With run_ids, BFCL replaces the old line of a case in the result file; without, it appends a second line.
            run_ids=bool(job["cases"]),
            enable_lora=False,
            max_lora_rank=None,
            lora_modules=None,
        )
    )


def _forget_failures(results: Path) -> int:
    """Remove failed generations from the result files, so that the next attempt runs them again; return how many."""
    forgotten = 0
    for path in results.rglob("BFCL_v4_*_result.json"):
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if not is_failed(json.loads(line))]
        if len(kept) < len(lines):
            forgotten += len(lines) - len(kept)
            path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    return forgotten


def is_failed(line: dict[str, Any]) -> bool:
    """Return whether a line of a result file records a failed generation.

    The text alone does not show it, because a model may write the same words; a failure also has a traceback.
    """
    result = line["result"]
    return isinstance(result, str) and result.startswith(FAILED) and "traceback" in line


def prompt(job: dict[str, Any]) -> None:
    """Write the prompt that BFCL would send for the given messages and tools to `prompt.txt`."""
    from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING
    from registry import MODEL

    entry = MODEL_CONFIG_MAPPING[MODEL]
    handler = entry.model_handler(entry.model_name, 0.0, MODEL, entry.is_fc_model)
    if job["prompt_format"] == "template":
        from transformers import AutoTokenizer

        handler.tokenizer = AutoTokenizer.from_pretrained(
            os.environ["REMOTE_OPENAI_TOKENIZER_PATH"], trust_remote_code=False
        )
    case = {"id": "simple_python_0", "question": [job["messages"]], "function": job["tools"]}
    data = handler._pre_query_processing_prompting(case)
    handler.add_first_turn_message_prompting(data, case["question"][0])
    text = handler._format_prompt(data["message"], data["function"])
    (Path(os.environ["BFCL_PROJECT_ROOT"]) / "prompt.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
