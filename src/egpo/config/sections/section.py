"""What all sections share: strictness, the kinds of numbers, and a fault between two keys."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from egpo.errors import Fault
from egpo.files import path_fault

LARGEST_COUNT = 2**31 - 1
"""Larger counts overflow the 32-bit integers of the libraries below, or could never be finished."""


def _usable_path(text: str) -> str:
    if fault := path_fault(text):
        raise PydanticCustomError("path", "{text}", {"text": f"it must be {fault}"})
    return text


Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Every = CountOrZero
"""A period in steps; 0 is never."""
PathText = Annotated[str, Field(min_length=1), AfterValidator(_usable_path)]
"""A path, or a name that is looked up as a path first."""
Words = Annotated[tuple[str, ...], Field(strict=False)]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
RunsFolder = PathText
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Section(BaseModel):
    """Unknown keys are faults, values keep their types, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


def raised(fault: Fault) -> PydanticCustomError:
    """A fault between fields, in the form that pydantic collects; `where` is the field to blame."""
    return PydanticCustomError("between_fields", "{text}", {"fault": fault, "text": str(fault)})
