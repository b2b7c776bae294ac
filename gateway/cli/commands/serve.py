"""Serve HTTP and relay requests as Celery tasks."""

from __future__ import annotations

import argparse

from gateway.cli import SETTINGS, add_settings


def options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, *(name for name in SETTINGS if name != "archive_url"))


def run(arguments: argparse.Namespace) -> int:
    # What serves is not loaded to show the options.
    from gateway.cli.serving import serve

    return serve(arguments)
