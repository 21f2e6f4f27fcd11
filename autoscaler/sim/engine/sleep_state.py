"""The parts of an engine that are asleep, in the levels and tags of vLLM's sleep mode.

Source: vLLM 0.32, recorded in `tests/data/vllm/endpoints.json`.
"""

from __future__ import annotations

from collections.abc import Collection

LEVELS = (0, 1, 2)
MODES = ("abort", "wait", "keep")
WEIGHTS, KV_CACHE = "weights", "kv_cache"


class SimulatedSleep:
    """The state of one engine, awake at first.

    Level 0 pauses the scheduler alone. Level 1 also moves the weights to the host and drops the KV cache. Level 2 drops
    both, so the weights have to be loaded again.
    """

    def __init__(self) -> None:
        self.level = 0  # of the last sleep
        self.paused = False  # the scheduler, in every level: the engine sleeps
        self.released: set[str] = set()  # parts that hold no GPU memory
        self.weights_lost = False  # the memory of the weights was allocated again, or will be

    def release(self, level: int) -> None:
        """Reach a level. The scheduler must be paused."""
        self.level = level
        if level:
            self.released = {WEIGHTS, KV_CACHE}
            self.weights_lost = self.weights_lost or level == 2

    def wake(self, tags: Collection[str]) -> None:
        """Wake the parts of these tags, or all without a tag. The scheduler resumes once all memory is back."""
        self.released -= set(tags or (WEIGHTS, KV_CACHE))
        self.paused = bool(self.released)

    def reload_weights(self) -> bool:
        """Load the weights again; return False if they have no memory."""
        if WEIGHTS in self.released:
            return False
        self.weights_lost = False
        return True
