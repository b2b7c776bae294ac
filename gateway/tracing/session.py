"""The HTTP session of what is sent to collectors."""

from __future__ import annotations

from typing import Any

import requests


class Session(requests.Session):
    """A session that reads no bodies of answers.

    They say nothing that is used here, requests limits neither their size nor the time that they
    take, and a collector decides on both.
    """

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        answer = super().request(*args, **{**kwargs, "stream": True})
        answer.close()
        return answer
