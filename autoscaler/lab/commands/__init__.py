"""What `simulate`, `simulate fit` and `replay` are made of, beside `app`: files and servers in, proofs out."""

from autoscaler.lab.commands.fit import fit
from autoscaler.lab.commands.replay import replay, replay_ticks
from autoscaler.lab.commands.setup import Setting
from autoscaler.lab.commands.simulate import simulate

__all__ = ["Setting", "fit", "replay", "replay_ticks", "simulate"]
