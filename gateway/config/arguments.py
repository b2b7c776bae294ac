"""The arguments of a task: where in a delivery each value is, and what stands for a missing one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_serializer

from gateway.celery_message import embedding, encode_body, encode_call
from gateway.config import pointers
from gateway.config.pointers import Pointer
from gateway.delivery import Delivery
from gateway.errors import BadRequest
from gateway.model import Model
from gateway.sources.reading import MISSING


class Argument(Model):
    """A value of the delivery, and what stands for it where the delivery has none.

    An `optional` one is left out there, so that the task's own default applies.
    """

    place: Pointer = Field(alias="from")
    default: Any = MISSING
    optional: bool = False

    @model_serializer
    def _written(self) -> dict[str, Any]:
        """Leave out the default where there is none: no format can express `MISSING`."""
        default = {} if self.default is MISSING else {"default": self.default}
        return {"from": self.place, **default, **({"optional": True} if self.optional else {})}

    def extractor(self) -> Callable[[Delivery], Any]:
        """Return the function that extracts the value.

        Without one it raises `BadRequest`, or returns `MISSING` where the argument is `optional`.
        """
        extract, place, default = pointers.extractor(self.place), self.place, self.default
        optional = self.optional

        def found(delivery: Delivery) -> Any:
            value = extract(delivery)
            if value is MISSING:
                value = default
            if value is MISSING and not optional:
                raise BadRequest(f"{place} is missing.")
            return value

        return found


def _argument(value: Any) -> Any:
    return {"from": value} if isinstance(value, str) else value


ArgumentSetting = Annotated[Argument, BeforeValidator(_argument)]


def call_encoder(
    args: Sequence[Argument] | None, kwargs: Mapping[str, Argument] | None, link_error: str | None
) -> Callable[[Delivery], bytes]:
    """Return the function that encodes the call of a task as a message's body.

    Without `args` and `kwargs` the task is called as ``task(query, headers, body)``. The function
    raises `BadRequest` where a value is missing.
    """
    embed = embedding(link_error)
    if args is None and kwargs is None:
        return lambda delivery: encode_body(delivery.query, delivery.headers, delivery.body, embed)
    listed = [argument.extractor() for argument in args or ()]
    named = {name: argument.extractor() for name, argument in (kwargs or {}).items()}
    return lambda delivery: encode_call(
        [find(delivery) for find in listed],
        {name: value for name, find in named.items() if (value := find(delivery)) is not MISSING},
        embed,
    )
