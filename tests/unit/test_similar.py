"""Which name somebody probably meant, and which names are only alike where they say nothing."""

from __future__ import annotations

import pytest

from gateway.similar import similar


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("celry", "celery"), ("shop.take_ordr", "shop.take_order"), ("invoice", "invoices"),
        ("shp.take_order", "shop.take_order"), ("SHOP.take_order", "shop.take_order"),
        ("result_expire", "result_expires"), ("broker", "broker_url"), ("queue_tpye", "queue_type"),
        # What is alike is only what all have.
        ("shop.tasks.refund", ""), ("result_colour", ""), ("journal_limit", ""), ("colour", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_a_name_is_meant_by_what_is_its_own(given: str, meant: str):
    known = [
        *("celery", "shop.take_order", "invoices", "result_expires", "result_backend"),
        *("broker_url", "queue_type", "shop.tasks.charge", "journal_bytes", "journal_age"),
    ]
    assert similar(given, known) == meant
    assert similar(given, []) == ""
