import re
from dataclasses import replace

import pytest

from autoscaler.sim.profiles import H100, H100_3G, LLAMA_8B, LLAMA_70B, profile


def test_one_sequence_decodes_no_faster_than_the_weights_can_be_read() -> None:
    for model, device, devices in ((LLAMA_8B, H100, 1), (LLAMA_70B, H100, 4), (LLAMA_8B, H100_3G, 1)):
        found = profile(model, device, devices)
        assert found.step_s > model.weight_bytes / (devices * device.bandwidth_bytes_per_s)
        assert found.prompt_token_s > 2 * model.parameters / (devices * device.flops)


def test_a_slice_with_half_the_bandwidth_takes_almost_twice_as_long_for_a_step() -> None:
    whole, half = profile(LLAMA_8B, H100), profile(LLAMA_8B, H100_3G)
    assert half.kv_token_s == pytest.approx(2 * whole.kv_token_s)
    assert 1.6 < half.step_s / whole.step_s < 2
    assert half.kv_capacity_tokens < 0.4 * whole.kv_capacity_tokens


def test_kv_tokens_are_the_memory_the_weights_leave_over() -> None:
    assert profile(LLAMA_8B, H100).kv_capacity_tokens == int((85.5e9 * 0.92 - 3e9 - 16.06e9) / 131072)


def test_a_model_that_does_not_fit_is_refused_by_name_with_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"llama-3.3-70b does not fit on 1 x .*H100.*would hold 0 tokens.* 8192"):
        profile(LLAMA_70B, H100)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_num_seqs", 0, "max_num_seqs is 0, it must be at least 1"),
        ("max_batched_tokens", 256, "max_batched_tokens is 256, it must exceed max_num_seqs (256)"),
        ("kv_capacity_tokens", 5000, "the KV cache holds 5000 tokens, less than one request of max_model_len 8192"),
    ],
)
def test_a_profile_that_no_engine_could_run_is_refused(field: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(profile(LLAMA_8B, H100), **{field: value})
