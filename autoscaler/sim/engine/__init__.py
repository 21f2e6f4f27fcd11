"""The simulated vLLM engine in plain Python, with profiles, cold starts and traffic; used by the demo and the
laboratory.
"""
