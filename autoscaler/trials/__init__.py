"""What `simulate`, `simulate fit` and `replay` are made of, beside `app`: files and servers in, proofs out."""

from autoscaler.trials.fitted import fit
from autoscaler.trials.replayed import replay, replay_ticks
from autoscaler.trials.setting import Setting
from autoscaler.trials.simulated import simulate

__all__ = ["Setting", "fit", "replay", "replay_ticks", "simulate"]
