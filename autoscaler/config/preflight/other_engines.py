"""Engines other than vLLM: how their command lines begin, and which of their options mean the same as vLLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class EngineFamily(NamedTuple):
    """One engine. Source: its command line reference."""

    name: str
    starts: tuple[str, ...]  # words of a command line behind which its options stand
    image: str  # the last part of its image's name; the entrypoint starts it
    same: Mapping[str, str]  # its options by vLLM's
    metrics_by: str = ""  # the option without which it exports no metrics


SGLANG = EngineFamily(
    "SGLang",
    ("sglang.launch_server", "sglang_router.launch_server"),
    "sglang",
    MappingProxyType(
        {
            "model-path": "model",
            "tp": "tensor-parallel-size",
            "tp-size": "tensor-parallel-size",
            "pp-size": "pipeline-parallel-size",
            "dp-size": "data-parallel-size",
            "dp": "data-parallel-size",
            "mem-fraction-static": "gpu-memory-utilization",
            "max-running-requests": "max-num-seqs",
            "context-length": "max-model-len",
            "disable-cuda-graph": "enforce-eager",
        }
    ),
    "enable-metrics",
)
TGI = EngineFamily(
    "TGI",
    ("text-generation-launcher",),
    "text-generation-inference",
    MappingProxyType(
        {
            "model-id": "model",
            "num-shard": "tensor-parallel-size",
            "cuda-memory-fraction": "gpu-memory-utilization",
            "max-total-tokens": "max-model-len",
            "quantize": "quantization",
        }
    ),
)
FAMILIES = (SGLANG, TGI)


def family_of(words: Sequence[str], image: str, *, by_image: bool) -> tuple[EngineFamily, int] | None:
    """Return the engine that words start, and where its options begin; None: it is none of these."""
    for family in FAMILIES:
        for index, word in enumerate(words):
            if word.rpartition("/")[2] in family.starts:
                return family, index + 1
        if by_image and image.partition("@")[0].rpartition("/")[2].partition(":")[0] == family.image:
            return family, 0
    return None
