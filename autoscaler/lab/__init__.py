"""The laboratory of `simulate` and `replay`: traces, baselines, bounds, reports. The daemon never imports it."""
