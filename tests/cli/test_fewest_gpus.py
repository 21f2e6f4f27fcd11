"""`simulate --fewest-gpus`: the least constant count of each device, and what is refused before it begins."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.sim.engine import profile_file
from autoscaler.sim.engine.profiles import DEVICES, find_profile, find_profiles
from tests.cli.study import POLICY, invoke, write_trace

pytestmark = pytest.mark.slow


def slower(file: Path, times: float, gpus: float) -> Path:
    """Write a profile that is this many times as slow as an H100."""
    spec = find_profile("8b-h100")
    columns = {
        name: getattr(spec.profile, name) * times for name in ("step_s", "sequence_s", "kv_token_s", "prompt_token_s")
    }
    file.write_text(profile_file.write(spec._replace(profile=replace(spec.profile, **columns), gpus=gpus, product="")))
    return file


def test_devices_are_ordered_by_their_least_constant_count(tmp_path: Path) -> None:
    times = np.sort(np.random.default_rng(5).uniform(0, 240, 2400))
    trace = write_trace(tmp_path / "busy.csv", (f"{time_s:.3f},900,60" for time_s in times))
    policy, out = tmp_path / "mine.yaml", tmp_path / "out.json"
    policy.write_text(POLICY.replace("ITL", "200ms"))
    fast, slow, late = (
        slower(tmp_path / f"{name}.json", *of) for name, of in (("fast", (2, 2)), ("slow", (4, 1)), ("late", (60, 1)))
    )
    more = [word for file in (slow, late) for word in ("--device-profile", file)]
    result = invoke(
        "simulate", "--trace", trace, "--profile", fast, *more, "--policy", policy, "--fewest-gpus", "--json", out
    )
    assert result.exit_code == 0, result.output
    (document,) = json.loads(out.read_text())
    first, second, last = document["devices"]
    assert {first["device"], second["device"]} == {"fast", "slow"}
    assert first["meets"] and second["meets"]
    assert first["constant_gpus"] <= second["constant_gpus"]
    assert first["constant_attainment"] >= 0.99 and second["constant_attainment"] >= 0.99
    assert first["peak_gpus"] >= first["mean_gpus"] > 0
    assert first["usd_per_million_tokens"] is None  # the profile names no device
    assert last["device"] == "late" and not last["meets"] and last["why_not"]
    assert document["sentence"] in " ".join(result.output.split())
    assert f"note: late: {last['why_not']}" in " ".join(result.output.split())

    count = round(first["constant_gpus"] / first["gpus_per_replica"])
    fewer = tmp_path / "fewer.json"
    options = ("--policy", policy, "--against", "static", "--tuned", "--jobs", "1", "--json", fewer)
    invoke("simulate", "--trace", trace, "--profile", fast if first["device"] == "fast" else slow, *options)
    tuned = next(run for run in json.loads(fewer.read_text())["policies"] if run["tuned"])
    assert tuned["params"]["replicas"] == count


def test_mean_is_below_the_peak_when_answers_outlast_the_trace(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "late.csv", (f"{time_s},100,4000" for time_s in range(5)))
    policy, out = tmp_path / "mine.yaml", tmp_path / "out.json"
    policy.write_text(POLICY.replace("ITL", "200ms"))
    file = slower(tmp_path / "one.json", 1, 1)
    words = ("--trace", trace, "--profile", file, "--policy", policy, "--fewest-gpus", "--json", out)
    assert invoke("simulate", *words).exit_code == 0
    (device,) = json.loads(out.read_text())[0]["devices"]
    assert 0.5 * device["peak_gpus"] < device["mean_gpus"] <= device["peak_gpus"]


def test_a_model_is_computed_on_every_device_that_holds_it() -> None:
    found = dict(find_profiles("8b-h100", 4000))
    assert {spec.product for spec in found.values()} == {device.product for device in DEVICES}
    assert found["1 x NVIDIA-L4"].gpus == 1
    assert not any("1g" in name or "2g" in name for name in found)  # 16 GB of weights
    large = dict(find_profiles("70b-4xh100", 4000))
    assert {name: spec.gpus for name, spec in large.items()} == {
        "8 x NVIDIA-L4": 8, "4 x NVIDIA-L40S": 4, "2 x NVIDIA-A100-SXM4-80GB": 2, "2 x NVIDIA-H100-80GB-HBM3": 2,
        "2 x NVIDIA-H200": 2, "1 x NVIDIA-B200": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fewest-gpus", "--against", "static"), "--against has no effect with --fewest-gpus"),
        (("--fewest-gpus", "--gpus", "8"), "that is what it finds"),
        (("--device-profile", "8b-a100"), "no effect without --fewest-gpus"),
        (("--fewest-gpus", "--device-profile", "no-such"), "no profile 'no-such'"),
        (("--fewest-gpus", "--scale", "0.0001"), "no request is left"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: tuple[str, ...], words: str, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "one.csv", ["1,100,10"])
    result = invoke("simulate", "--trace", trace, "--profile", "8b-h100", *options)
    assert result.exit_code == 2
    assert words in result.output
