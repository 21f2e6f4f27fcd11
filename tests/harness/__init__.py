"""Real servers for the tests: each file starts one kind on loopback, in a folder of its own, and surely ends it.

`fixtures.py` lists the servers that tests can use. Helpers of a single test module do not belong here.
"""
