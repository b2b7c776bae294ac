"""The base class and common types of all validated settings."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Base of settings: immutable, no unknown names, and no input values in error messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Seconds = Annotated[float, Field(gt=0, le=86_400)]


def matching(pattern: str, sentence: str) -> AfterValidator:
    """Make a validator for texts that match `pattern` as a whole; `sentence` is its error."""
    matches = re.compile(pattern).fullmatch

    def check(text: str) -> str:
        if not matches(text):
            raise ValueError(sentence)
        return text

    return AfterValidator(check)
