import re
from dataclasses import replace

import pytest

from autoscaler.sim.engine.profiles import (
    H100,
    H100_1G,
    H100_2G,
    H100_3G,
    LLAMA_8B,
    LLAMA_70B,
    NAMES,
    compute_profile,
    find_profile,
)


def test_decoding_is_bounded_by_reading_the_weights() -> None:
    for model, device, devices in ((LLAMA_8B, H100, 1), (LLAMA_70B, H100, 4), (LLAMA_8B, H100_3G, 1)):
        found = compute_profile(model, device, devices)
        assert found.step_s > model.weight_bytes / (devices * device.bandwidth_bytes_per_s)
        assert found.prompt_token_s > 2 * model.parameters / (devices * device.flops)


def test_half_the_bandwidth_nearly_doubles_the_step() -> None:
    whole, half = compute_profile(LLAMA_8B, H100), compute_profile(LLAMA_8B, H100_3G)
    assert half.kv_token_s == pytest.approx(2 * whole.kv_token_s)
    assert 1.6 < half.step_s / whole.step_s < 2
    assert half.kv_capacity_tokens < 0.4 * whole.kv_capacity_tokens


def test_kv_cache_takes_the_memory_left_by_the_weights() -> None:
    assert compute_profile(LLAMA_8B, H100).kv_capacity_tokens == int((85.5e9 * 0.92 - 3e9 - 16.06e9) / 131072)


def test_model_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"llama-3.3-70b does not fit on 1 x .*H100.*would hold 0 tokens.* 8192"):
        compute_profile(LLAMA_70B, H100)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_num_seqs", 0, "max_num_seqs is 0; it must be at least 1"),
        (
            "max_batched_tokens",
            256,
            "max_batched_tokens is 256; it must exceed max_num_seqs (256)",
        ),
        (
            "kv_capacity_tokens",
            5000,
            "kv_capacity_tokens is 5000; it must be at least 8,208, max_model_len and a block",
        ),
    ],
)
def test_impossible_profile_is_refused(field: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(compute_profile(LLAMA_8B, H100), **{field: value})


def test_every_named_profile_has_a_plausible_speed() -> None:
    for name in NAMES:
        found, gpus, product = find_profile(name)
        assert found.kv_capacity_tokens > found.max_model_len >= 4096
        assert 0.1 < gpus <= 4
        assert product
        alone_tokens_per_s = 1 / (found.step_s + found.sequence_s)
        assert 25 < alone_tokens_per_s < 180
        prefill_tokens_per_s = 1 / found.prompt_token_s
        assert 2_500 < prefill_tokens_per_s < 30_000


def test_faster_and_larger_devices_are_faster_and_larger() -> None:
    slices = [find_profile(name).profile for name in ("8b-h100", "8b-h100-3g")]
    assert slices[0].step_s < slices[1].step_s
    assert find_profile("8b-h100").profile.step_s < find_profile("8b-a100").profile.step_s
    assert find_profile("8b-h100").profile.prompt_token_s < 0.5 * find_profile("8b-a100").profile.prompt_token_s
    shares = [
        find_profile(name).gpus for name in ("8b-w4-h100-1g", "8b-fp8-h100-1g.20gb", "8b-fp8-h100-2g", "8b-h100-3g")
    ]
    assert shares == sorted(shares)
    assert find_profile("70b-4xh100").gpus == 4
    budgets = [find_profile(name).profile.max_batched_tokens for name in ("70b-4xh100", "8b-a100", "8b-h100-3g")]
    assert budgets == [8192, 2048, 2048]


def test_bf16_weights_of_8b_do_not_fit_a_small_slice() -> None:
    for device in (H100_1G, H100_2G):
        with pytest.raises(ValueError, match=r"llama-3\.1-8b does not fit on 1 x .* \dg\.\d0gb"):
            compute_profile(LLAMA_8B, device)


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no profile '8b-tpu'; available: 8b-h100, 8b-a100"):
        find_profile("8b-tpu")
