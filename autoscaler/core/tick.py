"""One tick: observation, demand, target, grant. Pure, so that daemon, dry-run, replay and simulation all run it."""
