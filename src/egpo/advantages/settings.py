"""What the estimators' settings may be. The config says the same of recipes; a test holds the two together."""

from collections.abc import Iterable, Iterator

from egpo.errors import ConfigError, Fault, nearest

FORMS = ("clip_entropy", "clip_bonus")
SIDES = ("both", "asymmetric", "positive_only")
MEASURES = ("entropy", "nll")


def egpo_faults(lam: float, alpha: float, form: str) -> Iterator[Fault]:
    """0 <= lam < alpha and alpha > 1: the bonus, at most lam/alpha (or 1/alpha) of |A|, never turns a sign."""
    if not alpha > 1:
        yield Fault(f"`alpha` is {alpha:g}", fix="it must be greater than 1")
    if not lam >= 0:
        yield Fault(f"`lam` is {lam:g}", fix="it must not be negative")
    elif alpha > 1 and not lam < alpha:
        yield Fault(f"`lam` {lam:g} is not less than `alpha` {alpha:g}", fix="a bonus of that size turns signs")
    yield from _choice_faults("form", form, FORMS)


def calibration_faults(lambda_min: float, lambda_max: float, eps: float, sides: str, measure: str) -> Iterator[Fault]:
    """0 <= lambda_min <= 1 <= lambda_max < inf and eps > 0: a weight neither turns a sign nor runs away."""
    if not 0 <= lambda_min <= 1:
        yield Fault(f"`lambda_min` is {lambda_min:g}", fix="it must lie in [0, 1]")
    if not 1 <= lambda_max < float("inf"):
        yield Fault(f"`lambda_max` is {lambda_max:g}", fix="it must be finite and at least 1")
    if not 0 < eps < float("inf"):
        yield Fault(f"`eps` is {eps:g}", fix="it must be finite and greater than 0")
    yield from _choice_faults("sides", sides, SIDES)
    yield from _choice_faults("measure", measure, MEASURES)


def refuse(faults: Iterable[Fault], where: str) -> None:
    """Raise every fault at once, if there is one."""
    found = [Fault(fault.what, where, fault.fix) for fault in faults]
    if found:
        raise ConfigError(found)


def _choice_faults(name: str, value: str, choices: tuple[str, ...]) -> Iterator[Fault]:
    if value not in choices:
        yield Fault(f"`{name}` is `{value}`", fix=nearest(str(value), choices))
