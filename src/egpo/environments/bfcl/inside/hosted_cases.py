"""Sessions of BFCL's multi-turn cases. Runs in a worker process under BFCL's interpreter, where egpo is not installed.

A session has instances of the case's classes of its own. The verdict plays the episode's calls and the ground truth on
new instances, turn by turn, and compares them with BFCL's own `state_checker` and `response_checker`.
"""

import ast
import copy
import importlib
import inspect
import json
from functools import lru_cache
from pathlib import Path

import bfcl_eval
from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
from bfcl_eval.constants.executable_backend_config import (
    CLASS_FILE_PATH_MAPPING,
    MULTI_TURN_FUNC_DOC_FILE_MAPPING,
    STATELESS_CLASSES,
)
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker

DATA = Path(bfcl_eval.__file__).parent / "data"
# The names that BFCL's executor refuses before it looks at them.
REFUSED = ("kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run")
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "int": "integer", "bool": "boolean"}


class FailedError(Exception):
    reason = "environment_reset"


@lru_cache(maxsize=8)
def lines_of(path):
    return {row["id"]: row for row in map(json.loads, (DATA / path).read_text(encoding="utf-8").splitlines())}


@lru_cache(maxsize=32)
def docs_of(class_name):
    text = (DATA / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def case_of(case_id):
    category = case_id.rpartition("_")[0]
    try:
        case = lines_of(f"BFCL_v4_{category}.json")[case_id]
        truth = lines_of(f"possible_answer/BFCL_v4_{category}.json")[case_id]["ground_truth"]
    except (OSError, KeyError) as error:
        raise FailedError(f"BFCL has no case {case_id!r:.80}") from error
    return case, truth


class Instances:
    """The instances of one rollout, and their public methods by name."""

    def __init__(self, case):
        long_context = "long_context" in case["id"]
        self.by_class, self.methods = {}, {}
        for name in case["involved_classes"]:
            instance = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in STATELESS_CLASSES:
                instance._load_scenario(copy.deepcopy(case["initial_config"].get(name, {})), long_context=long_context)
            self.by_class[name] = instance
            for method, bound in inspect.getmembers(instance, predicate=inspect.ismethod):
                if not method.startswith("_"):
                    self.methods[method] = bound

    def run(self, name, arguments, positional=()):
        """Run a call. Return its result as BFCL writes it, and the exception's type if it raised one."""
        try:
            if name in REFUSED:
                raise Exception(f"Function call {name} is not allowed.")
            if name not in self.methods:
                raise NameError(f"name '{name}' is not defined")
            result = self.methods[name](*copy.deepcopy(positional), **copy.deepcopy(arguments))
        except Exception as error:  # BFCL's executor tells the model whatever was raised
            return f"Error during execution: {error}", type(error).__name__
        if type(result) is dict:
            try:
                return json.dumps(result), ""
            except (TypeError, ValueError, RecursionError):
                return str(result), ""
        return (result if type(result) is str else str(result)), ""

    def state(self):
        shown = {}
        for name, instance in self.by_class.items():
            public = {key: value for key, value in vars(instance).items() if not key.startswith("_")}
            shown[name] = json.loads(json.dumps(public, default=_plain))
        return shown


def _plain(value):
    """Return an object of BFCL, such as a directory, as JSON values, without its parents and its time of change."""
    if hasattr(value, "__dict__"):
        return {key: inner for key, inner in vars(value).items() if key != "parent" and not key.startswith("_")}
    return str(value)


def parsed(call):
    """Return the name, the positional and the named arguments of a call in the ground truth; all are literals."""
    node = ast.parse(call.strip(), mode="eval").body
    positional = [ast.literal_eval(one) for one in node.args]
    return node.func.id, positional, {one.arg: ast.literal_eval(one.value) for one in node.keywords}


def checked(case, truth, turns):
    """Return BFCL's error type for an episode's calls, "" if it is valid. `turns`: steps of (name, arguments) by turn.

    The order of the checks is that of BFCL's `multi_turn_checker`.
    """
    if len(turns) != len(truth):
        return "multi_turn:force_terminated"
    made, wanted, results = Instances(case), Instances(case), []
    for index, (steps, expected) in enumerate(zip(turns, truth, strict=True)):
        results += [made.run(name, arguments)[0] for step in steps for name, arguments in step]
        gold = [wanted.run(name, named, positional)[0] for name, positional, named in map(parsed, expected)]
        if not expected:
            continue
        if not steps:
            return "multi_turn:empty_turn_model_response"
        for check in (
            state_checker(made.by_class, wanted.by_class),
            response_checker(results, gold, index),
        ):
            if not check["valid"]:
                return check["error_type"]
    return ""


def schema_of(doc):
    """Return a function's description in JSON schema: BFCL names some types as Python does."""
    return {"type": "function", "function": {key: _typed(doc[key]) for key in ("name", "description", "parameters")}}


def _typed(value):
    if isinstance(value, dict):
        found = {key: _typed(inner) for key, inner in value.items()}
        if isinstance(value.get("type"), str):
            found["type"] = TYPES.get(value["type"], value["type"])
            if found["type"] == "any":
                del found["type"]
        return found
    return [_typed(inner) for inner in value] if isinstance(value, list) else value


class HostedCase:
    """One episode of one case."""

    def answer(self, operation, given):
        return getattr(self, operation)(**given)

    def reset(self, row, result_chars):
        self.case, self.truth = case_of(str(row.get("case")))
        self.instances, self.turn, self.result_chars = Instances(self.case), 0, result_chars
        held_back = [name for names in self.case.get("missed_function", {}).values() for name in names]
        docs = [doc for name in self.case["involved_classes"] for doc in docs_of(name)]
        self.held_back = {doc["name"]: doc for doc in docs if doc["name"] in held_back}
        self.tools = [schema_of(doc) for doc in docs if doc["name"] not in held_back]
        messages = [dict(message) for message in self.case["question"][0]]
        return {"observation": None, "tools": self.tools, "messages": messages, "tools_in_prompt": False}

    def call(self, name, arguments):
        text, raised = self.instances.run(name, arguments)
        is_cut = len(text) > self.result_chars
        if is_cut:
            total = len(text)
            text = f"{text[: self.result_chars]}\n[cut: {self.result_chars:,} of {total:,} characters are shown]"
        return {"text": text, "is_cut": is_cut, "raised": raised, "done": False}

    def user_turn(self):
        self.turn += 1
        if self.turn >= len(self.case["question"]):
            return {"text": None, "tools": self.tools}
        added = self.case.get("missed_function", {}).get(str(self.turn), [])
        docs = [schema_of(self.held_back[name]) for name in added if name in self.held_back]
        self.tools = self.tools + docs
        if added:
            # A prompt cannot be changed in the middle of an episode, so the user brings the functions along, as in
            # BFCL's form for models that are prompted.
            text = DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING.format(functions=json.dumps(docs))
        else:
            text = "\n".join(message["content"] for message in self.case["question"][self.turn])
        return {"text": text, "tools": self.tools}

    def state(self):
        return self.instances.state()

    def verdict(self, turns):
        steps = [[]]
        for turn in turns:
            calls = [(call["name"], call["arguments"]) for call in turn["calls"]]
            steps[-1] += [calls] if calls else []
            if any(message["role"] == "user" for message in turn["messages"]):
                steps.append([])
        if not steps[-1] and (not turns or turns[-1]["messages"]):
            steps.pop()  # the episode was stopped before the assistant could reply to the user's last words
        error = checked(self.case, self.truth, steps)
        reason = error.rpartition(":")[2] or "correct"
        return {"reward": float(not error), "correct": not error, "reason": reason}

    def close(self):
        self.instances = None


def open_session():
    return HostedCase()
