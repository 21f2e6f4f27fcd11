"""The laboratory behind `simulate` and `replay`: traces, baselines, bounds and reports. The daemon never imports it."""
