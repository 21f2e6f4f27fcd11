"""The data types of the core: fleet, samples, policies, observation and decision."""
