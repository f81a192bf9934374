"""The task `dataset`: rows of a file or of the hub, a prompt template, and a reward function, without a class.

See docs/your_data.md. Rows are read, and the reward is imported, when the problems are first asked for: a recipe can
be checked on a machine that has neither.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from egpo.data.readers import SUFFIXES, Record
from egpo.data.rows import SPLITS, Message
from egpo.errors import InputError, nearest, warn_once
from egpo.rewards.scoring import DATA_SOURCES, REWARDS, check_settings
from egpo.rewards.user_functions import JudgedResponse, UserReward
from egpo.rewards.verdict import Verdict
from egpo.tasks.dataset_rows import (
    WHERE,
    Rows,
    Template,
    check_test,
    held_out,
    is_hub,
    parse_template,
    read_all,
    text_of_value,
    value_at,
)
from egpo.tasks.protocol import Problem, user_message
from egpo.tasks.sourced import require_at_least, require_whole

NAME = "dataset"
PROMPT_COLUMN = "prompt"
"""The column of the prompts if neither `prompt` nor `messages` is set, as in TRL: texts or chat messages."""
_PASSED_TO_BUILT_IN = ("ability", "tools")
"""Columns that a built-in reward gets besides the ground truth."""


@dataclass(frozen=True)
class DatasetProblem(Problem):
    """A problem with the columns of its row, as they were read, and the row's place for messages."""

    columns: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


@dataclass(frozen=True)
class _BuiltIn:
    """A reward of the package: its data source, under which `egpo audit` finds it again, and its mode."""

    data_source: str
    mode: str

    def judge(self, problem: DatasetProblem, text: str) -> Verdict:
        extra = {name: problem.columns[name] for name in _PASSED_TO_BUILT_IN if name in problem.columns}
        extra |= {"mode": self.mode} if self.mode else {}
        try:
            return REWARDS[DATA_SOURCES[self.data_source]].judge(text, problem.ground_truth, extra)
        except InputError as error:
            fault = error.faults[0]
            raise InputError(f"{fault.where}: {fault.what}", where=problem.where, fix=fault.fix) from error


class Dataset:
    """A task made of rows, a prompt and a reward.

    `source`: a JSON, JSON lines or parquet file, a folder with a train and a test file, a name on the hub, or the rows.
    `prompt`: a template with columns in braces; or `messages`: the column of the chat messages. `system`: the system
    prompt, for rows whose messages do not begin with one. `reward`: `file.py:function`, `module:function`, the name of
    a built-in reward, or a function. `answer`: the column of the ground truth. `gold`: a template of a response that
    earns full reward. `test`: a fraction or a number of rows to hold out by `seed`, another file, or a split on the
    hub, where `split` is the one for training. `train`: the number of training problems (None: all). A response is
    correct if its reward is at least `full_reward`.
    """

    def __init__(
        self,
        source: Rows | None = None,
        *,
        reward: str | Callable[..., Any] | None = None,
        prompt: str | None = None,
        messages: str | None = None,
        system: str | None = None,
        answer: str | None = None,
        gold: str | None = None,
        test: Rows | int | float | None = None,
        train: int | None = None,
        split: str = "train",
        seed: int = 0,
        full_reward: float = 1.0,
    ) -> None:
        if source is None:
            raise InputError("no data is given", where=WHERE, fix="set `source` to a file, or to OWNER/NAME on the hub")
        if prompt is not None and messages is not None:
            raise InputError("`prompt` and `messages` are both set", where=WHERE, fix="remove one of them")
        texts = {"messages": messages, "system": system, "answer": answer, "split": split}
        for name, value in texts.items():
            if value is not None and (not isinstance(value, str) or not value):
                raise InputError(f"{name}={value!r:.40} is not a text", where=WHERE, fix="give a text, or leave it out")
        if isinstance(full_reward, bool) or not isinstance(full_reward, int | float):
            raise InputError(f"full_reward={full_reward!r} is not a number", where=WHERE, fix="give a number")
        require_whole(NAME, seed=seed)
        if train is not None:
            require_at_least(NAME, 1, train=train)
        check_test(test, source)
        self._source, self._test, self._train, self._split, self.seed = source, test, train, split, seed
        self._prompt = None if prompt is None else parse_template(prompt, "prompt")
        self._gold = None if gold is None else parse_template(gold, "gold")
        self._messages, self._system, self._answer, self._full = messages, system, answer, float(full_reward)
        self._given_reward = reward
        self._built_in = _built_in(reward, answer)

    @property
    def data_source(self) -> str:
        """The name under which responses are stored: that of the built-in reward, else `dataset`."""
        return NAME if self._built_in is None else self._built_in.data_source

    @property
    def runs_programs(self) -> bool:
        """Whether the reward runs programs that the model wrote, which needs a sandbox."""
        return DATA_SOURCES.get(self.data_source) in ("code", "hybrid")

    def problems(self, split: str) -> Sequence[DatasetProblem]:
        if split not in SPLITS:
            raise InputError(f"unknown split `{split}`", where=WHERE, fix=nearest(split, SPLITS))
        found = self._splits.get(split)
        if found is None:
            fix = "set `test` to a fraction such as 0.1, a number of rows, a file, or a split of the hub's dataset"
            raise InputError("the dataset has no test split", where=WHERE, fix=fix)
        return found

    def prompt(self, problem: Problem) -> list[Message]:
        return [dict(message) for message in problem.messages]

    def judge(self, problem: Problem, text: str) -> Verdict:
        own = self._own(problem)
        if self._built_in is not None:
            return self._built_in.judge(own, text)
        return self._function.judge(self._response(own, text))

    @property
    def judge_many(self) -> Callable[[Sequence[Problem], Sequence[str]], list[Verdict]] | None:
        """The judge of many responses in one call; None unless the reward function has TRL's form."""
        return self._judge_many if self._built_in is None and self._function.is_batched else None

    def gold(self, problem: Problem) -> str:
        if self._gold is None:
            fix = "set `gold` to a template of a response that earns full reward, as in gold='#### {answer}'"
            raise InputError("the dataset has no gold answers", where=WHERE, fix=fix)
        own = self._own(problem)
        return self._gold.render(Record(dict(own.columns), own.where))

    def _judge_many(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        pairs = zip(problems, texts, strict=True)
        return self._function.judge_many([self._response(self._own(problem), text) for problem, text in pairs])

    def _own(self, problem: Problem) -> DatasetProblem:
        if not isinstance(problem, DatasetProblem):
            raise InputError("this problem is not of the dataset", where=f"problem {problem.key}")
        return problem

    def _response(self, problem: DatasetProblem, text: str) -> JudgedResponse:
        """Return the response in the form in which TRL would pass it: texts for text prompts, messages for messages."""
        truth = value_at(Record(dict(problem.columns), problem.where), self._answer) if self._answer else None
        if self._messages_column is None:
            return JudgedResponse(text, problem.messages[-1]["content"], text, truth, problem.columns, problem)
        said = [{"role": "assistant", "content": text}]
        return JudgedResponse(text, self.prompt(problem), said, truth, problem.columns, problem)

    @cached_property
    def _records(self) -> dict[str, list[Record]]:
        """The rows of each split. Only "train" if the test rows are held out, or if there are none."""
        records = {"train": read_all(self._source, self._split, "source")}
        if isinstance(self._source, str | Path) and Path(self._source).expanduser().is_dir():
            records = {split: read_all(self._source, split, "source") for split in SPLITS}
        elif isinstance(self._test, str) and is_hub(self._source) and _is_split_name(self._test):
            assert isinstance(self._source, str)
            records["test"] = read_all(self._source, self._test, "test")
        elif self._test is not None and not isinstance(self._test, int | float):
            records["test"] = read_all(self._test, "test", "test")
        return records

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        records = (record for split in self._records.values() for record in split)
        return tuple(dict.fromkeys(column for record in records for column in record.value))

    @cached_property
    def _function(self) -> UserReward:
        assert self._given_reward is not None
        truth = self._answer is not None
        return UserReward(self._given_reward, self._columns, has_truth=truth, full_reward=self._full)

    @cached_property
    def _messages_column(self) -> str | None:
        if self._prompt is not None or self._messages is not None:
            return self._messages
        first = self._records["train"][0]
        if PROMPT_COLUMN not in first.value:
            fix = 'set `prompt` to a template, as in "{question}", or `messages` to the column of the chat messages'
            shown = ", ".join(map(str, first.value))
            raise InputError(f"no prompt is given (the columns are {shown})", where=WHERE, fix=fix)
        return None if isinstance(first.value[PROMPT_COLUMN], str) else PROMPT_COLUMN

    @cached_property
    def _template(self) -> Template:
        return self._prompt or Template((("", PROMPT_COLUMN),))

    @cached_property
    def _splits(self) -> dict[str, list[DatasetProblem]]:
        if self._built_in is None:
            self._function  # noqa: B018  imported now, so that a mistake is found before a model is loaded
        if self._messages_column is None and not self._template.columns:
            warn_once(
                "dataset template", f"{WHERE}, prompt: the template names no column, so that all prompts are equal"
            )
        splits = {split: self._different(records, split) for split, records in self._records.items()}
        if isinstance(self._test, int | float):
            test = held_out([problem.key for problem in splits["train"]], self._test, self.seed)
            splits["test"] = [problem for problem in splits["train"] if problem.key in test]
        splits["train"] = self._without_test(splits)[: self._train]
        return splits

    def _different(self, records: Iterable[Record], split: str) -> list[DatasetProblem]:
        """Return one problem per key. Warn about rows that repeat the prompt of an earlier row."""
        problems = [self._problem(record) for record in records]
        first: dict[str, DatasetProblem] = {}
        for problem in problems:
            first.setdefault(problem.key, problem)
        if repeated := len(problems) - len(first):
            other = sum(text_of_value(p.columns) != text_of_value(first[p.key].columns) for p in problems)
            what = f"{repeated} of {len(problems)} rows of the split `{split}` repeat the prompt of an earlier row"
            differ = f"; {other} of them differ from it in other columns" if other else ""
            warn_once(f"dataset repeats {split}", f"{WHERE}: {what}, and are left out{differ}")
        return list(first.values())

    def _without_test(self, splits: Mapping[str, list[DatasetProblem]]) -> list[DatasetProblem]:
        taken = {problem.key for problem in splits.get("test", ())}
        left = [problem for problem in splits["train"] if problem.key not in taken]
        shared = len(splits["train"]) - len(left)
        if not left:
            what = "every training problem is also a test problem"
            raise InputError(what, where=WHERE, fix="give other rows as `test`: no problem may be in both")
        if shared and not isinstance(self._test, int | float):
            warn_once(
                "dataset overlap", f"{WHERE}: {shared} training problems are also test problems, and are left out"
            )
        return left

    def _problem(self, record: Record) -> DatasetProblem:
        messages = self._prompt_of(record)
        used = {self._messages_column} if self._messages_column else set(self._template.columns)
        rest = {column: value for column, value in record.value.items() if column not in used}
        if self._answer is None:
            truth, extra = text_of_value(rest), {}
        else:
            truth = text_of_value(value_at(record, self._answer))
            extra = {column: _scalar(value) for column, value in rest.items() if column != self._answer}
        # Rows are told apart by their prompts, or by all their columns if the template has none.
        same = messages if used else [messages, record.value]
        ability = record.value.get("ability")
        return DatasetProblem(
            key=_key(messages[-1]["content"], same),
            messages=messages,
            ground_truth=truth,
            ability=ability if isinstance(ability, str) else "",
            extra=extra,
            columns=dict(record.value),
            where=record.where,
        )

    def _prompt_of(self, record: Record) -> tuple[Message, ...]:
        if self._messages_column is None:
            messages = user_message(self._template.render(record))
        else:
            messages = _chat(value_at(record, self._messages_column), self._messages_column, record.where)
        if self._system is None or messages[0]["role"] == "system":
            return messages
        return ({"role": "system", "content": self._system}, *messages)


def located(settings: Mapping[str, Any], folders: Iterable[str]) -> dict[str, Any]:
    """Return the settings with absolute paths. Files are looked for in the current folder, then in `folders`."""
    found = _files(settings, ("", *folders))
    return {**settings, **{name: str(path.absolute()) + rest for name, (path, rest) in found.items()}}


def input_files(settings: Mapping[str, Any]) -> list[Path]:
    """Return the files and folders that the settings name: of the rows, and of the reward function."""
    return [path for path, _ in _files(settings).values()]


def _files(settings: Mapping[str, Any], folders: Sequence[str] = ("",)) -> dict[str, tuple[Path, str]]:
    """Return by setting the path that exists in one of the folders, and the text after it: a reward's `:function`."""
    found = {}
    for name in ("source", "test", "reward"):
        value = settings.get(name)
        word, colon, function = str(value).rpartition(":") if name == "reward" else (str(value), "", "")
        paths = (Path(folder, Path(word).expanduser()) for folder in folders)
        path = next((path for path in paths if path.exists()), None) if word else None
        if path is not None and isinstance(value, str | Path):
            found[name] = (path, colon + function)
    return found


def _built_in(reward: object, answer: str | None) -> _BuiltIn | None:
    """Return the built-in reward of this name, NAME or NAME@MODE; None for a function. InputError if it is neither."""
    if reward is None:
        fix = "set `reward` to file.py:function, or to the name of a built-in reward with its `answer` column"
        raise InputError("no reward is given", where=WHERE, fix=fix)
    if not isinstance(reward, str):
        if not callable(reward):
            what = f"reward={reward!r:.40} is neither a name nor a function"
            raise InputError(what, where=WHERE, fix="give file.py:function")
        return None
    name, _, mode = reward.partition("@")
    if name not in DATA_SOURCES and name not in REWARDS:
        if ":" in reward:
            return None
        what, known = f"unknown reward `{reward}`", {*DATA_SOURCES, *REWARDS}
        fix = f"name a function, as in {reward}:reward" if reward.endswith(".py") else nearest(name, known)
        raise InputError(what, where=WHERE, fix=f"{fix} (a function of your own: file.py:function)")
    if answer is None:
        fix = "set `answer` to the column of the ground truth"
        raise InputError(f"the reward `{name}` needs a ground truth", where=WHERE, fix=fix)
    source = name if name in DATA_SOURCES else next(key for key, kind in DATA_SOURCES.items() if kind == name)
    if mode:
        check_settings({"mode": mode}, [REWARDS[DATA_SOURCES[source]]], f"{WHERE}, reward {name}")
    return _BuiltIn(source, mode)


def _is_split_name(test: str) -> bool:
    path = Path(test).expanduser()
    return "/" not in test and path.suffix not in SUFFIXES and not path.exists()


def _chat(value: Any, column: str, where: str) -> tuple[Message, ...]:
    """Return the chat messages of a row. InputError unless they are {role, content}, and end before the response."""
    texts = ("role", "content")
    whole = isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value)
    if not whole or not all(isinstance(one.get(name), str) for one in value for name in texts):
        what = f"the column `{column}` is not a list of {{role, content}} messages"
        raise InputError(what, where=where, fix="give messages with a text as content, or `prompt` as a template")
    if value[-1]["role"] == "assistant":
        what = f"the messages in `{column}` end with the role `assistant`, so that there is nothing to respond to"
        raise InputError(what, where=where, fix="remove the last message")
    return tuple({name: one[name] for name in texts} for one in value)


def _key(text: str, identity: Any) -> str:
    """Return a key that people can read: the beginning of the prompt, and a digest of what identifies the problem."""
    whole = json.dumps(identity, default=str, sort_keys=True).encode()
    return f"{' '.join(text.split())[:60]} #{hashlib.sha256(whole).hexdigest()[:12]}"


def _scalar(value: Any) -> str | int:
    return value if type(value) is int else text_of_value(value)
