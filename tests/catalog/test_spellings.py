"""Spellings of engine metrics, and hints for names that are not read."""

import pytest

from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.spellings import PLAIN, Spelling, all_spellings, engines_spelled, spelled, unread_name_hint


def test_names_are_those_of_the_engine_without_a_prefix() -> None:
    assert spelled(ENGINES["vllm"], (PLAIN,)).readings == ENGINES["vllm"].readings
    assert all_spellings(("x_",))[:2] == (PLAIN, Spelling("", "_"))
    assert {spelling.prefix for spelling in all_spellings(("x_",))} == {"", "kserve_", "ray_", "x_"}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        (Spelling("kserve_"), "kserve_vllm:kv_cache_usage_perc"),
        (Spelling("ray_", "_"), "ray_vllm_kv_cache_usage_perc"),
        (Spelling("", "_"), "vllm_kv_cache_usage_perc"),
    ],
)
def test_every_name_follows_its_spelling(spelling: Spelling, name: str) -> None:
    rows = engines_spelled((PLAIN, spelling))["vllm"].readings["kv_usage"]
    assert [row.name for row in rows][::2] == ["vllm:kv_cache_usage_perc", name]
    bare = spelled(ENGINES["nim"], (spelling,)).readings["running"][0]
    assert (bare.name, bare.beside) == (
        f"{spelling.prefix}num_requests_running",
        f"{spelling.prefix}gpu_cache_usage_perc",
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("x_vllm:num_requests_running", "found x_vllm:num_requests_running; state the prefix with --metric-prefix x_"),
        ("x_vllm_num_requests_running", "found x_vllm_num_requests_running; state the prefix with --metric-prefix x_"),
        (
            "t:tgi_batch_current_size",
            "found t:tgi_batch_current_size; state the prefix with --metric-prefix t:",
        ),
        ("kserve_vllm:num_requests_running", ""),
        ("vllm_num_requests_running", ""),
        ("num_requests_running", ""),
        ("x_vllm:num_requests_running_total", ""),
        ("x" * 300 + "vllm:num_requests_running", ""),
    ],
)
def test_a_name_that_is_almost_read_gets_a_hint(name: str, hint: str) -> None:
    assert unread_name_hint(name, all_spellings()) == hint
    assert unread_name_hint(name, all_spellings(("x_", "t:"))) == ""


def test_another_engine_is_named_when_one_is_expected() -> None:
    assert "of engine sglang; state the engine" in unread_name_hint("sglang:num_running_reqs", all_spellings(), "vllm")
    assert unread_name_hint("sglang:num_running_reqs", all_spellings(), "sglang") == ""
