"""What all sections share: strictness, the kinds of numbers, and a fault between two keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from egpo.errors import Fault

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Every = Annotated[int, Field(ge=0)]
"""A period in steps; 0 is never."""
Words = Annotated[tuple[str, ...], Field(strict=False)]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
RunsFolder = Annotated[str, Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Section(BaseModel):
    """Unknown keys are faults, values keep their types, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


def raised(fault: Fault) -> PydanticCustomError:
    """A fault between fields, in the form that pydantic collects; `where` is the field to blame."""
    return PydanticCustomError("between_fields", "{text}", {"fault": fault, "text": str(fault)})
