"""A user's reward function over the columns of a dataset, called with the arguments that its parameters name.

The names of the parameters decide how it is called, always by keyword:

    completions      TRL's form: one call for many responses, a list of numbers out
    text             one call for each response, a number or a Verdict out
    solution_str     the same, with verl's name for the response

A function with none of these parameters, or with two of them, is refused. Further parameters are filled from
`prompts` (TRL's form), `problem`, `ground_truth`, `extra_info`, `data_source` (one response), and from the columns.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egpo.errors import EgpoError, InputError, nearest, warn_once
from egpo.rewards.named import FOREIGN_REASONS, user_function, verdict_of
from egpo.rewards.plain_values import plain
from egpo.rewards.verdict import Verdict
from egpo.user_code import place_of

BATCHED, RESPONSES = "completions", ("completions", "text", "solution_str")
"""The parameters that take the response or the responses. Exactly one of them must be there."""
NOT_PASSED = ("prompt", "completion", "completion_ids", "prompts", "completions")
"""Columns that TRL does not pass to a reward function, because its own arguments have these names."""
RULE = "take `completions` (TRL's form, many responses) or `text` (one response) as a parameter"
NO_SCORE, REWARD_RAISED = "no_score", "reward_raised"
assert {NO_SCORE, REWARD_RAISED} <= set(FOREIGN_REASONS)


class RewardError(Exception):
    """The exception for a user's reward function that raised on one response. Its text names the function and line."""


@dataclass(frozen=True)
class JudgedResponse:
    """One response with everything that a reward function may ask for.

    `prompt` and `completion` have TRL's form: text, or chat messages if the prompts of the dataset are chat messages.
    """

    text: str
    prompt: Any
    completion: Any
    ground_truth: Any
    columns: Mapping[str, Any]
    problem: Any


class UserReward:
    """A user's reward function, checked against the columns of a dataset.

    `has_truth`: whether the dataset has a ground truth. `full_reward`: the reward from which a response is correct.
    """

    def __init__(
        self,
        reward: str | Callable[..., Any],
        columns: Sequence[str],
        *,
        has_truth: bool,
        full_reward: float = 1.0,
        data_source: str = "dataset",
    ) -> None:
        self.name = reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)
        self._function = user_function(reward) if isinstance(reward, str) else reward
        self._where, self._full, self._data_source = f"reward {self.name}", full_reward, data_source
        parameters = _parameters(self._function, self._where)
        self.is_batched = _response_parameter(parameters, self._where) == BATCHED
        self._passed = self._chosen(parameters, columns, has_truth=has_truth)

    def _chosen(
        self, parameters: Mapping[str, inspect.Parameter], columns: Sequence[str], *, has_truth: bool
    ) -> set[str]:
        """Return the names of the arguments to pass. InputError if a required one does not exist."""
        own = {"prompts", "completions"} if self.is_batched else {"text", "solution_str", "problem"}
        own |= set() if self.is_batched else {"extra_info", "data_source"}
        own |= {"ground_truth"} if has_truth else set()
        known = own | {column for column in columns if not (self.is_batched and column in NOT_PASSED)}
        required = [p.name for p in parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        for name in required:
            if name not in known:
                truth = " (set the task's `answer` to the column of the ground truth)" if name == "ground_truth" else ""
                what = f"the function requires `{name}`, which is not a column of the data"
                raise InputError(what, where=self._where, fix=nearest(name, known) + truth)
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        responses = set(RESPONSES) - set(parameters)
        return (known if takes_any else known & set(parameters)) - responses

    def judge(self, response: JudgedResponse) -> Verdict:
        """Judge one response. Raise RewardError if the function raises, InputError if it does not return a number."""
        if self.is_batched:
            return self.judge_many([response])[0]
        values = {
            **response.columns,
            "text": response.text,
            "solution_str": response.text,
            "problem": response.problem,
            "ground_truth": response.ground_truth,
            "extra_info": dict(response.columns),
            "data_source": self._data_source,
        }
        return self._verdict(self._call(values, "responses on which it raises are left out, and count as failed"))

    def judge_many(self, responses: Sequence[JudgedResponse]) -> list[Verdict]:
        """Judge many responses in one call. If the function raises, it is called again for each response alone.

        InputError if it raises or returns None or NaN for all of them, or a wrong number of values.
        """
        try:
            verdicts = self._judged(responses, "it is called again with one response at a time")
        except RewardError as error:
            verdicts = [self._judged_alone(response) for response in responses] if len(responses) > 1 else []
            if all(verdict.reason == REWARD_RAISED for verdict in verdicts):
                raise InputError(str(error), fix="correct the function") from error
        if verdicts and all(verdict.failed for verdict in verdicts):
            what = f"the function gave no reward for any of {len(verdicts)} responses (None or NaN)"
            raise InputError(what, where=self._where, fix="return a number for at least some responses")
        return verdicts

    def _judged_alone(self, response: JudgedResponse) -> Verdict:
        try:
            return self._judged([response], "responses on which it raises are left out, and count as failed")[0]
        except RewardError:
            return Verdict(0.0, False, REWARD_RAISED, failed=True)

    def _judged(self, responses: Sequence[JudgedResponse], consequence: str) -> list[Verdict]:
        names = {name for response in responses for name in response.columns} | self._passed
        values = {name: [response.columns.get(name) for response in responses] for name in names}
        if "ground_truth" not in responses[0].columns:
            values["ground_truth"] = [response.ground_truth for response in responses]
        values["prompts"] = [response.prompt for response in responses]
        values["completions"] = [response.completion for response in responses]
        returned = plain(self._call(values, consequence))
        if not isinstance(returned, list):
            what = f"the function returned {type(returned).__name__}, not a list"
            raise InputError(what, where=self._where, fix="return a list with one number for each completion")
        if len(returned) != len(responses):
            what = f"the function returned {len(returned)} values for {len(responses)} completions"
            raise InputError(what, where=self._where, fix="return one number for each completion")
        return [self._verdict(value) for value in returned]

    def _call(self, values: Mapping[str, Any], consequence: str) -> Any:
        try:
            return self._function(**{name: values[name] for name in self._passed if name in values})
        except EgpoError:
            raise
        except (Exception, SystemExit) as error:  # boundary: a user's function may raise anything
            place = place_of(error, _file(self._function))
            what = f"{self._where}: the function raised {type(error).__name__}: {error} ({place})"
            warn_once(f"{self._where} {consequence}", f"{what}; {consequence}")
            raise RewardError(what) from error

    def _verdict(self, value: Any) -> Verdict:
        verdict = verdict_of(value, self.name, self._full)
        if verdict.failed and verdict.reason == NO_SCORE:
            what = f"{self._where} returned {value!r:.40} for a response"
            warn_once(f"{self._where} no score", f"{what}; such responses are left out, and count as failed")
        return verdict


def _parameters(function: Callable[..., Any], where: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function, without `*args`. InputError if it cannot be called by keyword."""
    if not callable(function):
        raise InputError(f"{function!r:.60} is not a function", where=where, fix="give a function")
    if inspect.isclass(function):
        raise InputError("this is a class, not a function", where=where, fix="give a function, or an object to call")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise InputError("the function is asynchronous", where=where, fix="give a function without `async`")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        fix = f"write a Python function around it; it must {RULE}"
        raise InputError("the function's parameters are not known", where=where, fix=fix) from error
    if nameless := [p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]:
        what = f"the parameter `{nameless[0]}` cannot be given by name"
        raise InputError(what, where=where, fix="remove the `/` from the function's parameters")
    return {name: p for name, p in parameters.items() if p.kind is not p.VAR_POSITIONAL}


def _response_parameter(parameters: Mapping[str, inspect.Parameter], where: str) -> str:
    """Return which of `RESPONSES` the function takes. InputError if it takes none of them, or several."""
    found = [
        name for name in RESPONSES if name in parameters and parameters[name].kind is not inspect.Parameter.VAR_KEYWORD
    ]
    if len(found) > 1:
        what = f"the function takes both `{found[0]}` and `{found[1]}`, so that its form is ambiguous"
        raise InputError(what, where=where, fix=f"rename one of them (and its column): it must {RULE}")
    if not found:
        what = f"the function's parameters ({', '.join(parameters) or 'none'}) do not tell how to call it"
        raise InputError(what, where=where, fix=RULE)
    return found[0]


def _file(function: Callable[..., Any]) -> str:
    try:
        return inspect.getfile(inspect.unwrap(function))
    except TypeError:
        return ""
