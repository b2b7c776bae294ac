"""The base class and common types of all validated settings."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)


class Text(str):
    """The value of a variable, a file or an option: it may stand for a number, true or false."""


class Model(BaseModel):
    """Base of settings: immutable, no unknown names, and no input values in error messages.

    A value has the type of its setting. Only of a `Text` it is made.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _of_text(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Text):
            kind: Any = cls.model_fields[str(info.field_name)].annotation
            with suppress(ValidationError):  # the setting's own validation says what is wrong
                return TypeAdapter(kind).validate_python(str(value), strict=False)
        return value


#: TOML has no type for a path.
File = Annotated[Path, Field(strict=False)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


def matching(pattern: str, sentence: str) -> AfterValidator:
    """Make a validator for texts that match `pattern` as a whole; `sentence` is its error."""
    matches = re.compile(pattern).fullmatch

    def check(text: str) -> str:
        if not matches(text):
            raise ValueError(sentence)
        return text

    return AfterValidator(check)
