"""The checksum of a file whose ranges arrive in any order."""

from __future__ import annotations

import hashlib
import random
import threading
from contextlib import closing
from pathlib import Path

import pytest

from autoscaler.weights.listing import RemoteFile
from autoscaler.weights.part_file import PartFile

RANGE = 64 << 10


@pytest.mark.parametrize("most_held", [0, 1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_checksum_is_right_whatever_the_order_of_ranges(tmp_path: Path, most_held: int, seed: int) -> None:
    chance = random.Random(seed)
    content = chance.randbytes(20 * RANGE + 99)
    file = RemoteFile("model.safetensors", len(content), hashlib.sha256(content).hexdigest())
    held = threading.Semaphore(most_held)
    with closing(PartFile(file, tmp_path / "part", RANGE, held)) as part:
        numbers = part.missing()
        chance.shuffle(numbers)
        for number in numbers:
            start = part.start(number)
            part.write(number, memoryview(content)[start : start + part.length(number)])
        assert part.digest() == file.sha256
    assert (tmp_path / "part").read_bytes() == content
