"""Replica profiles: the speed of a model on a device, computed from public figures.

* Bandwidth and dense BF16 performance are from the data sheets "NVIDIA A100 Tensor Core GPU" (SXM, 80 GB) and "NVIDIA
  H100 Tensor Core GPU" (SXM), whose sparse figures are halved. Memory is from `nvidia-smi`.
* A slice has its share of bandwidth (NVIDIA "Multi-Instance GPU User Guide", supported MIG profiles): 1g 1/8, 1g with
  double memory and 2g 2/8, 3g 4/8. It has 16, 26, 32 or 60 of the H100's 132 SMs, as listed by `nvidia-smi mig -lgip`.
* Model figures are those of the published configurations. Sizes of quantised weights are computed: embeddings and head
  keep 16 bits (1.05e9 parameters of the 8B model). The rest has 8 bits, or 4 bits and a 16-bit scale for every 128
  weights.
* Efficiencies and overheads are assumed round numbers. Measure them before relying on a digit, or fit a profile to a
  recording (`fit`).

docs/explanation/simulator.md, section Profiles, links the sources and lists the assumed constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

# Assumed round numbers, except MEMORY_UTILIZATION.
BANDWIDTH_EFFICIENCY = 0.75  # fraction of the memory bandwidth that decoding reaches
COMPUTE_EFFICIENCY = 0.45  # fraction of the dense peak that prefill reaches
STEP_OVERHEAD_S = 0.0015  # scheduling, sampling and kernel launches of one step
LINK_OVERHEAD_S = 0.0025  # all-reduces of one step under tensor parallelism
SEQUENCE_S = 30e-6  # sampling and bookkeeping of one sequence in one step
MEMORY_UTILIZATION = 0.92  # --gpu-memory-utilization, the engine's default since 0.20
RESERVED_BYTES = 3e9  # activations and CUDA graphs on each device
DEFAULT_SLOTS = (256, 1024)  # --max-num-seqs of vLLM without the option: by its version and the memory of the GPU
MOST_GPU_BYTES = 500e9  # above any present GPU: a B300 has 288 GB


@dataclass(frozen=True)
class LanguageModel:
    """A language model."""

    name: str
    parameters: float
    weight_bytes: float
    kv_bytes_per_token: float  # 2 x layers x KV heads x head dimension x bytes
    max_model_len: int


@dataclass(frozen=True)
class ProfileDevice:
    """A GPU or a slice of one."""

    product: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops: float  # dense BF16
    mig_profile: str = ""  # "": a whole GPU
    gpu_fraction: float = 1.0  # fraction of a GPU, for cost: the larger of its memory and compute shares


LLAMA_8B = LanguageModel("llama-3.1-8b", 8.03e9, 16.06e9, 2 * 32 * 8 * 128 * 2, 8192)
QWEN_14B = LanguageModel("qwen2.5-14b", 14.8e9, 29.6e9, 2 * 48 * 8 * 128 * 2, 8192)
LLAMA_70B = LanguageModel("llama-3.3-70b", 70.6e9, 141.2e9, 2 * 80 * 8 * 128 * 2, 8192)
LLAMA_8B_FP8 = LanguageModel("llama-3.1-8b-fp8", 8.03e9, 9.08e9, LLAMA_8B.kv_bytes_per_token, 32_768)
LLAMA_8B_W4 = LanguageModel("llama-3.1-8b-w4a16", 8.03e9, 5.7e9, LLAMA_8B.kv_bytes_per_token, 4096)

A100 = ProfileDevice("NVIDIA-A100-SXM4-80GB", 85.9e9, 2.039e12, 312e12)
H100 = ProfileDevice("NVIDIA-H100-80GB-HBM3", 85.5e9, 3.35e12, 989e12)
H100_3G = ProfileDevice("NVIDIA-H100-80GB-HBM3", 42.4e9, 1.675e12, 989e12 * 60 / 132, "3g.40gb", 0.5)
H100_2G = ProfileDevice("NVIDIA-H100-80GB-HBM3", 21.0e9, 0.8375e12, 989e12 * 32 / 132, "2g.20gb", 2 / 7)
H100_1G_DOUBLE = ProfileDevice("NVIDIA-H100-80GB-HBM3", 21.0e9, 0.8375e12, 989e12 * 26 / 132, "1g.20gb", 0.25)
H100_1G = ProfileDevice("NVIDIA-H100-80GB-HBM3", 10.4e9, 0.41875e12, 989e12 * 16 / 132, "1g.10gb", 1 / 7)
L4 = ProfileDevice("NVIDIA-L4", 24.15e9, 0.3e12, 121e12)
L40S = ProfileDevice("NVIDIA-L40S", 48.3e9, 0.864e12, 362e12)
H200 = ProfileDevice("NVIDIA-H200", 150.7e9, 4.8e12, 989e12)
B200 = ProfileDevice("NVIDIA-B200", 192.2e9, 8.0e12, 2250e12)
DEVICES = (L4, L40S, A100, H100, H200, B200, H100_1G, H100_1G_DOUBLE, H100_2G, H100_3G)
"""Devices on which any model can be computed: data sheets for the whole ones, as above."""


class FieldError(ValueError):
    """A field that is inconsistent with the others. The message gives the value and what is allowed."""

    def __init__(self, field: str, value: float, must: str) -> None:
        super().__init__(f"{field} is {value:.15g}; it must {must}")
        self.field = field


@dataclass(frozen=True)
class Profile:
    """The constants of one replica: step time and capacity.

    A step that decodes B sequences with K tokens in total and computes C prompt tokens takes `step_s + sequence_s x B +
    kv_token_s x K + prompt_token_s x C` seconds. The sum ignores that reading and computing overlap, so it is too slow
    when both are large.
    """

    step_s: float
    sequence_s: float
    kv_token_s: float
    prompt_token_s: float
    kv_capacity_tokens: int
    max_num_seqs: int
    max_model_len: int
    max_batched_tokens: int = 8192  # token budget of a step, --max-num-batched-tokens
    block_size: int = 16  # tokens of a KV block
    weight_bytes: float = 0.0

    @property
    def stated_slots(self) -> float:
        """Slots that the command line states; NaN: they are a default, so it states none."""
        return math.nan if self.max_num_seqs in DEFAULT_SLOTS else float(self.max_num_seqs)

    def __post_init__(self) -> None:
        for name in ("kv_capacity_tokens", "max_num_seqs", "max_model_len", "block_size"):
            if getattr(self, name) < 1:
                raise FieldError(name, getattr(self, name), "be at least 1")
        if self.max_batched_tokens <= self.max_num_seqs:
            raise FieldError(
                "max_batched_tokens",
                self.max_batched_tokens,
                f"exceed max_num_seqs ({self.max_num_seqs}), or a full batch leaves no room for a prompt",
            )
        if self.kv_capacity_tokens < (least := self.max_model_len + self.block_size):
            raise FieldError(
                "kv_capacity_tokens",
                self.kv_capacity_tokens,
                f"be at least {least:,}, max_model_len and a block, or the longest request does not fit into the cache",
            )


def compute_profile(
    model: LanguageModel, device: ProfileDevice, devices: int = 1, max_num_seqs: int = DEFAULT_SLOTS[0]
) -> Profile:
    """Compute the profile of `model` on `devices` devices under tensor parallelism.

    Raises ValueError if the model leaves no room for the KV cache of one full request.
    """
    bandwidth = devices * device.bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY
    usable_bytes = devices * (device.memory_bytes * MEMORY_UTILIZATION - RESERVED_BYTES) - model.weight_bytes
    capacity_tokens = int(usable_bytes / model.kv_bytes_per_token)
    if capacity_tokens <= model.max_model_len:
        raise ValueError(
            f"{model.name} does not fit on {devices} x {device.product} {device.mig_profile}: the KV cache would hold "
            f"{max(capacity_tokens, 0)} tokens, a request may have {model.max_model_len}"
        )
    return Profile(
        step_s=model.weight_bytes / bandwidth + STEP_OVERHEAD_S + (LINK_OVERHEAD_S if devices > 1 else 0.0),
        sequence_s=SEQUENCE_S,
        kv_token_s=model.kv_bytes_per_token / bandwidth,
        prompt_token_s=2 * model.parameters / (devices * device.flops * COMPUTE_EFFICIENCY),
        kv_capacity_tokens=capacity_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=model.max_model_len,
        weight_bytes=model.weight_bytes,
    )


class ReplicaSpec(NamedTuple):
    """A profile with the GPUs of a replica."""

    profile: Profile
    gpus: float  # GPUs of one replica; a slice counts as the larger of its memory and compute shares
    product: str = ""  # of these GPUs; "": not known

    def check_weights(self) -> None:
        """Raise FieldError if no such number of GPUs can hold the weights. The memory of the GPUs is not known."""
        if self.profile.weight_bytes > (most := self.gpus * MOST_GPU_BYTES):
            why = f"gpus is {self.gpus:.15g}, and no GPU has more than {MOST_GPU_BYTES:,.15g} bytes"
            raise FieldError("weight_bytes", self.profile.weight_bytes, f"be at most {most:,.15g}: {why}")


def find_profile(name: str) -> ReplicaSpec:
    """Return a profile by name. Raises ValueError with the known names."""
    if name not in _NAMED:
        raise ValueError(f"no profile {name!r}; available: {', '.join(NAMES)}")
    model, device, devices, longest = _NAMED[name]
    made = compute_profile(replace(model, max_model_len=longest), device, devices)
    # Defaults of vLLM's server (EngineArgs): 8192 on 70 GiB and more, but not on an A100; else 2048.
    budget = 8192 if device is H100 else 2048
    return ReplicaSpec(replace(made, max_batched_tokens=budget), devices * device.gpu_fraction, device.product)


def find_profiles(name: str, longest: int) -> list[tuple[str, ReplicaSpec]]:
    """Return the model of a named profile on every device, each on the fewest of 1, 2, 4 or 8 that hold it.

    longest: tokens of the longest request. Slices serve alone: there is no link between them. Raises ValueError for an
    unknown name.
    """
    find_profile(name)
    model, _, _, context = _NAMED[name]
    model = replace(model, max_model_len=min(longest, context))
    found = []
    for device in DEVICES:
        for devices in (1,) if device.mig_profile else (1, 2, 4, 8):
            try:
                made = compute_profile(model, device, devices)
            except ValueError:
                continue
            budget = 8192 if device.memory_bytes > 75e9 and device is not A100 else 2048
            label = f"{devices} x {device.product}" + f" {device.mig_profile}".rstrip()
            spec = ReplicaSpec(replace(made, max_batched_tokens=budget), devices * device.gpu_fraction, device.product)
            found.append((label, spec))
            break
    return found


# BF16 weights of an 8B model fit neither a 2g nor a 1g slice of an 80 GB card, so theirs are quantised. The last number
# is the longest context: that of the training, or that of the slice's KV cache.
_NAMED: dict[str, tuple[LanguageModel, ProfileDevice, int, int]] = {
    "8b-h100": (LLAMA_8B, H100, 1, 131_072),
    "8b-a100": (LLAMA_8B, A100, 1, 131_072),
    "8b-h100-3g": (LLAMA_8B, H100_3G, 1, 131_072),
    "8b-fp8-h100-2g": (LLAMA_8B_FP8, H100_2G, 1, 32_768),
    "8b-fp8-h100-1g.20gb": (LLAMA_8B_FP8, H100_1G_DOUBLE, 1, 32_768),
    "8b-w4-h100-1g": (LLAMA_8B_W4, H100_1G, 1, 4096),
    "14b-h100": (QWEN_14B, H100, 1, 32_768),
    "70b-4xh100": (LLAMA_70B, H100, 4, 131_072),
}
NAMES = tuple(_NAMED)
