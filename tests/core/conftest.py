"""Settings of the property tests."""

from hypothesis import settings

# A shared machine may pause for longer than Hypothesis's 200 ms; how fast the tick is, bench/micro/tick.py measures.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
