"""Rows of a load test's report, made up."""

from __future__ import annotations

from typing import Any


def row(strategy: str, rps: float, errors: int = 0, **more: Any) -> dict[str, Any]:
    """Return a measurement at 64 connections; `more` replaces or adds figures."""
    return {
        "strategy": strategy, "repeat": 1, "connections": 64, "requests": 1000, "rps": rps,
        "errors": errors, "errors_by_kind": {"status": errors}, "wrong_answers": 0,
        "latency_ms": {"p50": 3.0, "p99": 5.0}, "cpu_us_per_request": {"gateway": 100.0}, **more,
    }  # fmt: skip


def disturbed(percent: float) -> dict[str, dict[str, float]]:
    """Return what a row says of so many per cent of the cores that other programs had."""
    return {"cores": {"others_percent": percent}}
