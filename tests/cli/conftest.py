"""A trace as a file."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.study import write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    times = np.sort(np.random.default_rng(5).uniform(0, 600, 900))
    return write_trace(tmp_path / "ten-minutes.csv.gz", (f"{time_s:.3f},500,80" for time_s in times))
