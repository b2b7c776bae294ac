"""What all validated settings have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Settings that cannot change, know no others, and never quote what they were given."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


Seconds = Annotated[float, Field(gt=0, le=86_400)]
