"""Only folders of namespaces are compile caches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.weights.compile_cache import cache_of, is_cache


def test_folder_of_a_namespace_is_a_cache() -> None:
    assert is_cache("compile/my-team/llama-8b_v0.11.0")
    assert cache_of("/mnt/disks/ssd0/weights/compile/my-team/llama") == "compile/my-team/llama"
    assert cache_of("/mnt/compile/weights/compile/my-team/llama/") == "compile/my-team/llama"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/mnt/weights",
        "/mnt/weights/compile",
        "/mnt/weights/compile/my-team",
        "/mnt/weights/compile/my-team/../other/x",
        "/mnt/weights/compile/my-team/a/b",
        "/mnt/weights/compile/MY/a",
        "/mnt/weights/compile/my-team/..",
        "/mnt/weights/compile/my-team/" + "x" * 200,
    ],
)
def test_other_folders_are_no_caches(path: str) -> None:
    assert cache_of(path) == ""


@pytest.mark.slow
@given(st.text(max_size=60))
def test_no_path_leads_out_of_the_caches(text: str) -> None:
    cache = cache_of(f"/mnt/weights/compile/{text}")
    assert not cache or (is_cache(cache) and ".." not in cache.split("/") and cache.count("/") == 2)
