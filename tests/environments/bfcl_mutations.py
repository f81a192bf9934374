"""Trajectories of BFCL's multi-turn cases, changed one thing at a time. Some changes keep them right.

A trajectory has a list of steps for each turn; a step is a list of [name, arguments], one message of the assistant.
"""

import copy
import json
import random


def gold_of(case):
    return [[[[call.name, dict(call.arguments)] for call in turn]] if turn else [] for turn in case.truth]


def mutations(case, others, harmless, rng: random.Random):
    """Yield (kind, trajectory). `others`: calls of other cases with these classes; `harmless`: calls without effect."""
    gold = gold_of(case)
    yield "gold", gold
    yield "one call a message", [[[call] for step in turn for call in step] for turn in gold]
    for kind, change in CHANGES.items():
        changed = change(copy.deepcopy(gold), rng, others, harmless)
        if changed is not None and json.dumps(changed) != json.dumps(gold):
            yield kind, changed


def _place(gold, rng, wanted=lambda call: True):
    places = [
        (t, s, c)
        for t, turn in enumerate(gold)
        for s, step in enumerate(turn)
        for c, call in enumerate(step)
        if wanted(call)
    ]
    return rng.choice(places) if places else None


def _without(gold, place):
    turn, step, at = place
    removed = gold[turn][step].pop(at)
    gold[turn] = [one for one in gold[turn] if one]
    return removed


def drop_call(gold, rng, others, harmless):
    _without(gold, _place(gold, rng))
    return gold


def empty_turn(gold, rng, others, harmless):
    gold[rng.randrange(len(gold))] = []
    return gold


def cut_short(gold, rng, others, harmless):
    return gold[: rng.randrange(len(gold))]


def change_argument(gold, rng, others, harmless):
    place = _place(gold, rng, lambda call: call[1])
    if place is None:
        return None
    given = gold[place[0]][place[1]][place[2]][1]
    name = rng.choice(sorted(given))
    given[name] = _changed(given[name])
    return gold


def _changed(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return value[:-1] if isinstance(value, list) and value else [] if isinstance(value, list) else {}


def change_type(gold, rng, others, harmless):
    place = _place(gold, rng, lambda call: call[1])
    if place is None:
        return None
    given = gold[place[0]][place[1]][place[2]][1]
    name = rng.choice(sorted(given))
    given[name] = rng.choice([None, 7, "7", [given[name]], {"value": 1}])
    return gold


def drop_argument(gold, rng, others, harmless):
    place = _place(gold, rng, lambda call: call[1])
    if place is None:
        return None
    given = gold[place[0]][place[1]][place[2]][1]
    del given[rng.choice(sorted(given))]
    return gold


def add_argument(gold, rng, others, harmless):
    turn, step, at = _place(gold, rng)
    gold[turn][step][at][1]["unheard_of"] = 1
    return gold


def rename(gold, rng, others, harmless):
    turn, step, at = _place(gold, rng)
    gold[turn][step][at][0] = rng.choice(
        ["no_such_function", "kill", "_load_scenario", "print", "GorillaFileSystem.ls"]
    )
    return gold


def swap_turns(gold, rng, others, harmless):
    if len(gold) < 2:
        return None
    one, other = rng.sample(range(len(gold)), 2)
    gold[one], gold[other] = gold[other], gold[one]
    return gold


def swap_calls(gold, rng, others, harmless):
    long = [step for turn in gold for step in turn if len(step) > 1]
    if not long:
        return None
    rng.shuffle(rng.choice(long))
    return gold


def move_earlier(gold, rng, others, harmless):
    place = _place(gold, rng)
    if place[0] == 0:
        return None
    call = _without(gold, place)
    gold[place[0] - 1].append([call])
    return gold


def repeat(gold, rng, others, harmless):
    turn, step, at = _place(gold, rng)
    gold[turn][step].insert(at, copy.deepcopy(gold[turn][step][at]))
    return gold


def extra_harmless(gold, rng, others, harmless):
    if not harmless:
        return None
    turn = rng.randrange(len(gold))
    gold[turn].insert(rng.randint(0, len(gold[turn])), [[rng.choice(harmless), {}]])
    return gold


def extra_foreign(gold, rng, others, harmless):
    turn = rng.randrange(len(gold))
    gold[turn].append([copy.deepcopy(rng.choice(others))])
    return gold


def call_where_none_is_due(gold, rng, others, harmless):
    empty = [at for at, turn in enumerate(gold) if not turn]
    if not empty:
        return None
    gold[rng.choice(empty)] = [[copy.deepcopy(rng.choice(others))]]
    return gold


CHANGES = {
    change.__name__.replace("_", " "): change
    for change in (
        drop_call, empty_turn, cut_short, change_argument, change_type, drop_argument, add_argument, rename, swap_turns,
        swap_calls, move_earlier, repeat, extra_harmless, extra_foreign, call_where_none_is_due,
    )
}  # fmt: skip
