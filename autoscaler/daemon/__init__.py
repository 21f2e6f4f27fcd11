"""The live loop: its ticks, its log, and the state that it keeps across restarts."""
