"""What the scripts of `bench/` import exists; `make test-long` runs them."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(f"bench.{path.parent.name}.{path.stem}" for path in (ROOT / "bench").glob("*/*.py"))


@pytest.mark.slow
def test_every_script_of_the_bench_can_be_imported() -> None:
    for script in SCRIPTS:
        importlib.import_module(script)
