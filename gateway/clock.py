"""The clocks of the whole package: no other module takes them from `time`.

`monotonic` is for deadlines and durations, `time` for what is written down or told to others, in
seconds; the others are the same in nanoseconds. They are the functions of `time`, so a call costs
nothing more. The simulator puts virtual clocks in their place before it imports anything else.
"""

from time import monotonic, monotonic_ns, time, time_ns

__all__ = ["monotonic", "monotonic_ns", "time", "time_ns"]
