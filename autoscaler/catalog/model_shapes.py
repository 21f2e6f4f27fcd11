"""Sizes of well-known models: parameters, layers, KV heads, head dimension and context, by the name of the model.

`preflight` asks no hub, so it counts with these. Sources: the models' cards and their `config.json` as published. A
name that is not here is unknown. Weights of quantized variants follow from the name (AWQ, GPTQ, FP8, w4a16); some
models are published in few bits alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple


class ModelShape(NamedTuple):
    """The size of one model."""

    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    context: int  # tokens, max_position_embeddings
    windowed: bool = False  # some layers keep a window only


_B = 1e9
# The first pattern that the last part of the name matches from its start, in lower case.
_SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        r"(meta-)?llama-3\.3-70b": ModelShape(70.55 * _B, 80, 8, 128, 131_072),
        r"(meta-)?llama-3\.1-405b": ModelShape(405.9 * _B, 126, 8, 128, 131_072),
        r"(meta-)?llama-3\.1-70b": ModelShape(70.55 * _B, 80, 8, 128, 131_072),
        r"(meta-)?llama-3\.1-8b": ModelShape(8.03 * _B, 32, 8, 128, 131_072),
        r"(meta-)?llama-3\.2-3b": ModelShape(3.21 * _B, 28, 8, 128, 131_072),
        r"(meta-)?llama-3\.2-1b": ModelShape(1.24 * _B, 16, 8, 64, 131_072),
        r"meta-llama-3-70b": ModelShape(70.55 * _B, 80, 8, 128, 8_192),
        r"meta-llama-3-8b": ModelShape(8.03 * _B, 32, 8, 128, 8_192),
        r"llama-2-7b": ModelShape(6.74 * _B, 32, 32, 128, 4_096),
        r"llama-2-13b": ModelShape(13.02 * _B, 40, 40, 128, 4_096),
        r"llama-2-70b": ModelShape(68.98 * _B, 80, 8, 128, 4_096),
        r"deepseek-r1-distill-llama-8b": ModelShape(8.03 * _B, 32, 8, 128, 131_072),
        r"deepseek-r1-distill-llama-70b": ModelShape(70.55 * _B, 80, 8, 128, 131_072),
        r"deepseek-r1-distill-qwen-1\.5b": ModelShape(1.78 * _B, 28, 2, 128, 131_072),
        r"deepseek-r1-distill-qwen-7b": ModelShape(7.62 * _B, 28, 4, 128, 131_072),
        r"deepseek-r1-distill-qwen-14b": ModelShape(14.77 * _B, 48, 8, 128, 131_072),
        r"deepseek-r1-distill-qwen-32b": ModelShape(32.76 * _B, 64, 8, 128, 131_072),
        r"qwen2\.5-(coder-)?0\.5b": ModelShape(0.49 * _B, 24, 2, 64, 32_768),
        r"qwen2\.5-(coder-|math-)?1\.5b": ModelShape(1.54 * _B, 28, 2, 128, 32_768),
        r"qwen2\.5-(coder-)?3b": ModelShape(3.09 * _B, 36, 2, 128, 32_768),
        r"qwen2\.5-(coder-|math-)?7b": ModelShape(7.62 * _B, 28, 4, 128, 32_768),
        r"qwen2\.5-(coder-)?14b": ModelShape(14.77 * _B, 48, 8, 128, 32_768),
        r"qwen2\.5-(coder-)?32b": ModelShape(32.76 * _B, 64, 8, 128, 32_768),
        r"qwen2\.5-(math-)?72b": ModelShape(72.71 * _B, 80, 8, 128, 32_768),
        r"qwq-32b": ModelShape(32.76 * _B, 64, 8, 128, 40_960),
        r"qwen3-0\.6b": ModelShape(0.6 * _B, 28, 8, 128, 40_960),
        r"qwen3-1\.7b": ModelShape(2.03 * _B, 28, 8, 128, 40_960),
        r"qwen3-4b": ModelShape(4.02 * _B, 36, 8, 128, 40_960),
        r"qwen3-8b": ModelShape(8.19 * _B, 36, 8, 128, 40_960),
        r"qwen3-14b": ModelShape(14.77 * _B, 40, 8, 128, 40_960),
        r"qwen3-32b": ModelShape(32.76 * _B, 64, 8, 128, 40_960),
        r"qwen3-30b-a3b": ModelShape(30.53 * _B, 48, 4, 128, 40_960),
        r"qwen3-235b-a22b": ModelShape(235.1 * _B, 94, 4, 128, 40_960),
        r"mistral-7b-.*v0\.[23]": ModelShape(7.25 * _B, 32, 8, 128, 32_768),
        r"mistral-7b-.*v0\.1": ModelShape(7.24 * _B, 32, 8, 128, 32_768, True),
        r"mistral-nemo": ModelShape(12.25 * _B, 40, 8, 128, 131_072),
        r"mistral-small-24b": ModelShape(23.57 * _B, 40, 8, 128, 32_768),
        r"mistral-small-3\.[12]-24b": ModelShape(24.01 * _B, 40, 8, 128, 131_072),
        r"mistral-large-instruct-24": ModelShape(122.6 * _B, 88, 8, 128, 32_768),
        r"mixtral-8x7b": ModelShape(46.7 * _B, 32, 8, 128, 32_768),
        r"mixtral-8x22b": ModelShape(140.6 * _B, 56, 8, 128, 65_536),
        r"gemma-2-2b": ModelShape(2.61 * _B, 26, 4, 256, 8_192, True),
        r"gemma-2-9b": ModelShape(9.24 * _B, 42, 8, 256, 8_192, True),
        r"gemma-2-27b": ModelShape(27.23 * _B, 46, 16, 128, 8_192, True),
        r"gemma-3-4b": ModelShape(4.3 * _B, 34, 4, 256, 131_072, True),
        r"gemma-3-12b": ModelShape(12.19 * _B, 48, 8, 256, 131_072, True),
        r"gemma-3-27b": ModelShape(27.43 * _B, 62, 16, 128, 131_072, True),
        r"phi-4-mini": ModelShape(3.84 * _B, 32, 8, 128, 131_072),
        r"phi-4": ModelShape(14.66 * _B, 40, 10, 128, 16_384),
        r"phi-3-mini-4k": ModelShape(3.82 * _B, 32, 32, 96, 4_096, True),
        r"phi-3-medium-128k": ModelShape(13.96 * _B, 40, 10, 128, 131_072),
        r"yi-1\.5-34b": ModelShape(34.39 * _B, 60, 8, 128, 4_096),
        r"gpt-oss-20b": ModelShape(20.91 * _B, 24, 8, 64, 131_072, True),
        r"gpt-oss-120b": ModelShape(116.8 * _B, 36, 8, 64, 131_072, True),
        # One latent vector of 576 for each token and layer, in place of keys and values.
        r"deepseek-(v3(\.[12])?|r1)": ModelShape(671.0 * _B, 61, 1, 288, 163_840),
        r"opt-125m": ModelShape(0.125 * _B, 12, 12, 64, 2_048),
        r"tinyllama-1\.1b": ModelShape(1.1 * _B, 22, 4, 64, 2_048),
    }
)
_FOUR_BITS = re.compile(r"awq|gptq|w4a16|int4|4bit|nvfp4|mxfp4|bnb|^gpt-oss(?!.*bf16)")
_EIGHT_BITS = re.compile(r"fp8|w8a8|int8|8bit|w8a16|^deepseek-(v3|r1)(?!.*(bf16|distill))")
_UNKNOWN_BITS = re.compile(r"gguf|q[2-8]_|exl2|hqq|quip|aqlm|-vl-|vision|2bit|3bit|w2a16")


@lru_cache(maxsize=1024)
def find_shape(model: str) -> ModelShape | None:
    """Return the size of a model by its name; None: unknown."""
    name = model.rpartition("/")[2].lower()[:200]
    return next((shape for names, shape in _SHAPES.items() if re.match(rf"{names}(?![\d.])", name)), None)


def bytes_per_parameter(model: str) -> tuple[float, float] | None:
    """Return the least and most bytes of a stored parameter by the name of a model; None: unknown."""
    name = model.rpartition("/")[2].lower()[:200]
    if _UNKNOWN_BITS.search(name):
        return None
    if _FOUR_BITS.search(name):
        return 0.5, 0.8  # embeddings and scales are kept in 16 bits
    return (1.0, 1.1) if _EIGHT_BITS.search(name) else (1.98, 2.02)


def is_quantized(model: str) -> bool:
    name = model.rpartition("/")[2].lower()[:200]
    return bool(_FOUR_BITS.search(name) or _EIGHT_BITS.search(name))
