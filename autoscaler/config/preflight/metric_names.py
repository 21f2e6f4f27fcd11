"""Names of metrics: what they are about, whoever exports them."""

from __future__ import annotations

import re

LOAD = re.compile(
    r"(?:ray_|kserve_)?(?:vllm|sglang|lmdeploy)[:_]|tgi_|trtllm_|nv_trt_llm_|nv_inference_|dynamo_component_"
    r"|num_requests_(?:running|waiting)(?:$|_)|gpu_cache_usage_perc$"
)
"""Metrics of an engine's requests; names without a prefix are those of NIM."""
ENGINE = re.compile(rf"(?:{LOAD.pattern}).*|DCGM_FI_.+|container_.+")
"""Metrics that are there only while a pod of the workload is there."""
SURVIVES = re.compile(r"(?:vllm[:_](?:num_incoming_requests|healthy_pods)|ray_serve_).*")
"""Metrics of a router: they count without any engine."""
_NAME_CHARS = 200  # of a metric's name that are looked at
_RATIO_WORDS = frozenset({"perc", "percent", "ratio", "usage", "utilization", "utilisation", "util", "saturation"})
_GPU_MEMORY = re.compile(
    r"fb_used|fb_free|fb_total|framebuffer|gpu_?mem|vram|accelerator_memory|nvidia_[a-z_]{0,40}memory",
    re.IGNORECASE,
)
_GPU_USE = re.compile(
    r"gpu_?util|gpu_?duty|duty_cycle|gr_engine|sm_active|sm_util|tensor_active|tensor_util|dram_active|gpu_usage",
    re.IGNORECASE,
)
_HOST_USE = ("container_cpu_", "container_memory_", "process_cpu_", "process_resident_", "node_memory_", "node_cpu_")
COUNTERS = re.compile(r".*(?:_total|_bucket|_(?:seconds|tokens|length|size|duration)_(?:sum|count))")
"""Others that end in _count may be gauges, as those of Triton."""
GAUGES = ("_running", "_waiting", "_swapped", "_perc", "_reqs", "token_usage", "_size", "_utilization")


def is_gpu_memory(name: str) -> bool:
    return _GPU_MEMORY.search(name[:_NAME_CHARS]) is not None and "cache_usage" not in name


def is_gpu_use(name: str) -> bool:
    return _GPU_USE.search(name[:_NAME_CHARS]) is not None and "cache_usage" not in name and not is_gpu_memory(name)


def is_host_use(name: str) -> bool:
    return name.startswith(_HOST_USE)


def is_running(name: str) -> bool:
    return name.endswith(("num_requests_running", "num_running_reqs", "batch_current_size"))


def is_ratio(name: str) -> bool:
    return not _RATIO_WORDS.isdisjoint(re.split(r"[_:]", name.lower()))
