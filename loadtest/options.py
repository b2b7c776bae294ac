"""What is wrong with the options of a load test, beyond what the command line itself can see."""

from __future__ import annotations


class WrongOption(Exception):
    """An experiment cannot do what the options ask for; one line says what to do instead."""
