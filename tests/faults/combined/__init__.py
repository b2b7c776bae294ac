"""Random faults, one to three at once, on everything around the gateway and on the gateway itself.

    make faults ARGS="--random --seeds 1-20 --minutes 2"

A *lane* is one seed with one strategy on servers of its own. What happens in it is drawn from
the seed (`schedule.py`), and the oracle (`oracle.py`) judges what senders were told and what
workers did. docs/reliability.md says what is promised.
"""
