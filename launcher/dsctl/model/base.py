"""The base of all values that travel between the rooms of dsctl."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _compiles(expression: str) -> str:
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return expression


#: A regular expression in a data file, checked when it is read.
Regex = Annotated[str, AfterValidator(_compiles)]


class Value(BaseModel):
    """A frozen value: compared by content, unknown keys refused."""

    # Validators are built at first use: most commands use few of the values.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
