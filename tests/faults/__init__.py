"""The fault matrix: what may go wrong around the gateway, and what it must not cost.

    make faults                              the whole matrix
    make faults ARGS="--rows 1,3 --resume"   some of it, without what is known to hold
    make faults ARGS="--random --seeds 1-20" random faults, one to three at once (`seeds.py`)

Every row starts private servers, sends requests, injects its fault and asks the oracle
(`oracle.py`): is everything that was acknowledged executed, once, and was everybody answered
in time? docs/reliability.md says what each row shows.
"""
