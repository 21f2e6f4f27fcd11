"""Reads what an engine needs of memory: its options, and the index and configuration of its model.

The model's files are untrusted: numbers that no model has are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from autoscaler.catalog.devices import device_memory_gb
from autoscaler.config.model_memory import GIB, REAL_SHARE, UNKNOWN, UTILIZATION, Load, Range

Options = Mapping[str, str]  # stated options of vLLM, by name without hyphens in front

MAX_DEVICES = 1024
STATED = "as the annotation weights-gb or the policy states"
_MAX_WEIGHTS = 1e14  # bytes
_MAX_NUMBER = 10**9
_BYTES = {"float32": 4.0, "float": 4.0, "float16": 2.0, "half": 2.0, "bfloat16": 2.0}
_BETWEEN_TOKENS = ("sliding_window", "layer_types", "layers_block_type", "linear_num_key_heads", "mamba_d_state")
_CACHES = ("ForCausalLM", "ForConditionalGeneration")  # architectures that generate
# Ways of scaling positions that `max_position_embeddings` includes.
_WITHIN_LENGTH = ("llama3", "longrope", "su", "mrope", "default")
# Least bytes of a weight after quantization while loading, as a share of 16 bits.
_LOADED_SHARE = {"fp8": 0.5, "bitsandbytes": 0.25}


class ModelFiles(NamedTuple):
    """Facts that the files of a model state."""

    weights: Range = UNKNOWN  # bytes
    config: Mapping[str, object] = MappingProxyType({})
    source: str = ""  # where they were found
    problem: str = ""  # why they are not known


def read_total_size(index: object) -> float:
    """Return the bytes of the weights by `model.safetensors.index.json`; NaN: not stated, or impossible."""
    metadata = index.get("metadata") if isinstance(index, dict) else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return possible_size(size)


def possible_size(size: object) -> float:
    """Return a size in bytes; NaN: no model has it."""
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size <= _MAX_WEIGHTS:
        return math.nan
    return float(size)


def weights_of_files(sizes: Mapping[str, float]) -> Range:
    """Return the bytes of the weights in files, by name. Several formats of one model are not added up."""
    for suffix, prefix in ((".safetensors", "model"), (".safetensors", ""), (".bin", "pytorch_model")):
        found = [size for name, size in sizes.items() if name.endswith(suffix) and name.startswith(prefix)]
        if found and not any(math.isnan(size) for size in found):
            return Range(sum(found) if prefix else max(found), sum(found))
    return UNKNOWN


def needs_of(options: Options, files: ModelFiles, gpus: float, *, is_vllm: bool = True) -> Load:
    """Return what an engine puts on its devices. gpus: that its pod requests; NaN: unknown."""
    config = _text_config(files.config)
    if not is_vllm or "config" in options or "hf-overrides" in options or any("$" in each for each in options.values()):
        # Options may be hidden, so only the weights count, on all devices.
        devices = int(gpus) if gpus >= 1 else MAX_DEVICES
        return Load(Range(files.weights.least / 4, math.inf), devices=devices, utilization=Range(0.0, 1.0))
    tensor, pipeline, ranks = (_count(options.get(f"{name}-parallel-size")) for name in ("tensor", "pipeline", "data"))
    weights = _weights(options, files, config)
    if ranks > 1:  # experts may be spread over the ranks
        weights = Range(weights.least / ranks, weights.most)
    offloaded = _number(options.get("cpu-offload-gb"))
    if offloaded > 0:
        weights = Range(max(0.0, weights.least - offloaded * GIB * tensor * pipeline), weights.most)
    share = _number(options.get("gpu-memory-utilization"))
    return Load(
        weights=weights,
        kv_per_token=_kv_per_token(options, config, tensor),
        context=_context(options, config),
        devices=min(tensor * pipeline, MAX_DEVICES),
        utilization=Range(share, share) if 0 < share <= 1 else Range(*UTILIZATION),
    )


def memory_of(resource: str, product: str, sharing: str = "") -> Range:
    """Return the bytes of one device. With time-slicing a pod may use what the others leave."""
    least, most = device_memory_gb(resource, product)
    is_shared = bool(sharing) or resource.endswith(".shared") or product.endswith("-SHARED")
    return Range(0.0 if is_shared else least * REAL_SHARE * GIB, most * GIB)


def devices_of(options: Options) -> int:
    """Return the devices that one copy of the model is spread over."""
    return parallel_size(options) * _count(options.get("pipeline-parallel-size"))


def parallel_size(options: Options) -> int:
    """Return the devices that one copy of the model is spread over by tensor parallelism."""
    return _count(options.get("tensor-parallel-size"))


def _text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the configuration of the language model of a multimodal one."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _weights(options: Options, files: ModelFiles, config: Mapping[str, object]) -> Range:
    """Return the bytes of the weights after loading: quantized ones as stored, others in the stated type."""
    if config.get("quantization_config") or not files.config:
        share = 0.25 if options.get("quantization") and not files.config and files.source != STATED else 1.0
        return Range(files.weights.least * share, files.weights.most)
    stored = _BYTES.get(str(config.get("dtype", config.get("torch_dtype"))), 0.0)
    loaded = _BYTES.get(options.get("dtype", "auto"), 2.0)
    factor = Range(loaded / stored, loaded / stored) if stored else Range(0.5, 1.0)
    if quantization := options.get("quantization"):
        factor = Range(factor.least * _LOADED_SHARE.get(quantization, 0.25), factor.most)
    return Range(files.weights.least * factor.least, files.weights.most * factor.most)


def _kv_per_token(options: Options, config: Mapping[str, object], tensor: int) -> Range:
    """Return the bytes of a token in the KV cache: 2 x layers x KV heads x head dim x bytes.

    With more devices than KV heads each device has a copy. Latent attention stores one vector for keys and values.
    """
    layers, heads = _whole(config.get("num_hidden_layers")), _whole(config.get("num_attention_heads"))
    if not layers:
        return UNKNOWN
    cache = options.get("kv-cache-dtype", "auto")
    kind = _BYTES.get(options.get("dtype", "auto"), 2.0)
    quantization = config.get("quantization_config")
    scheme = quantization.get("kv_cache_scheme") if isinstance(quantization, dict) else None
    size = Range(1.0, 1.0) if "fp8" in cache else Range(1.0 if scheme or cache != "auto" else kind, kind)
    if latent := _whole(config.get("kv_lora_rank")):
        values = float(layers * (latent + _whole(config.get("qk_rope_head_dim"))) * tensor)
    else:
        hidden = _whole(config.get("hidden_size"))
        dim = _whole(config.get("head_dim")) or (hidden // heads if heads else 0)
        kv_heads = _whole(config.get("num_key_value_heads")) or heads
        if not (dim and kv_heads):
            return UNKNOWN
        values = 2.0 * layers * max(kv_heads, tensor) * dim
    architectures = config.get("architectures")
    generates = isinstance(architectures, list) and any(str(each).endswith(_CACHES) for each in architectures)
    # Layers with a window or a fixed state keep less than every token.
    partial = any(config.get(key) for key in _BETWEEN_TOKENS) or not generates
    return Range(0.0 if partial else values * size.least, values * size.most)


def _context(options: Options, config: Mapping[str, object]) -> Range:
    stated = options.get("max-model-len")
    if stated is not None:
        tokens = _tokens(stated)
        return Range(tokens, tokens) if tokens else Range(0.0, UNKNOWN.most)  # auto, -1: what fits
    tokens = float(_whole(config.get("max_position_embeddings")))
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    extends = isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) not in _WITHIN_LENGTH
    factor = _number(str(scaling.get("factor", 1))) if isinstance(scaling, dict) and extends else 1.0
    return Range(tokens, tokens * (factor if factor >= 1 else 1.0)) if tokens else UNKNOWN


def _tokens(text: str) -> float:
    """Read vLLM's number of tokens: 32768, 32k (thousands), 32K (of 1,024); 0: not a number."""
    units = {"k": 1e3, "m": 1e6, "K": 1024.0, "M": 1024.0**2}
    factor = units.get(text[-1:], 1.0)
    number = _number(text[:-1] if text[-1:] in units else text)
    return number * factor if 0 < number * factor <= _MAX_NUMBER else 0.0


def _count(text: str | None) -> int:
    number = _number(text)
    return int(number) if 1 <= number <= MAX_DEVICES else 1


def _number(text: str | None) -> float:
    """Return a number of an option; 0: absent or not a plain decimal."""
    if text is None or len(text) > 32 or not text.replace(".", "", 1).isdigit() or not text.isascii():
        return 0.0
    return float(text)


def _whole(value: object) -> int:
    """Return a whole number of a configuration; 0: absent or impossible."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_NUMBER else 0
