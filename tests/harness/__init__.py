"""Real servers for the tests: each file starts one kind on loopback, in a folder of its own, and surely ends it.

`fixtures.py` is the list of what a test can ask for. Helpers of a single test module do not belong here.
"""
