"""The benchmark of verification: every scheme, and deliveries that are verified."""

from __future__ import annotations

from gateway.sources import SCHEMES
from loadtest.verification import SIZE, request, rows, source
from tests.support.each import for_each
from tests.unit.sources.examples import IN_BODY

NOW = 1_800_000_000.0


def test_every_scheme_is_measured():
    assert {row.scheme for row in rows()} == set(SCHEMES) - IN_BODY


@for_each("row", rows())
def test_what_is_measured_is_verified_and_has_the_size(row):
    verified = source(row.scheme, row.options).verify(request(row, NOW))
    assert len(verified.body) == SIZE
    assert verified.challenge is None
