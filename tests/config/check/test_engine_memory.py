"""Whether a model fits: the arithmetic, the reference's table, options of the engine, absurd numbers."""

import math

import pytest

from autoscaler.config.check.engine_memory import (
    STATED,
    ModelFiles,
    memory_of,
    needs_of,
    possible_size,
    read_total_size,
    weights_of_files,
)
from autoscaler.config.model_memory import GIB, UNKNOWN, FitVerdict, Load, Range, judge

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}
LLAMA_70B = {**LLAMA_8B, "num_hidden_layers": 80, "num_attention_heads": 64, "hidden_size": 8192}


def model(gb: float, config: dict[str, object] | None = None) -> ModelFiles:
    return ModelFiles(Range(gb * 1e9, gb * 1e9), config or {}, "test" if config else STATED)


def mig(profile: str) -> Range:
    return memory_of(f"nvidia.com/mig-{profile}", "")


def test_the_sentence_has_the_arithmetic():
    load = Load(Range(141e9, 141e9), Range(327_680, 327_680), Range(32_768, 32_768), 2, Range(0.9, 0.9))
    assert judge(load, Range(80 * GIB, 80 * GIB)).sentence == (
        "needs 131.3 GiB of weights and 10 GiB of KV cache for 32,768 tokens on 2 × 80 GiB × 0.9 - 2 × 3 GiB: "
        "may be short by 3.3 GiB"
    )
    one = judge(load._replace(devices=1), Range(80 * GIB, 80 * GIB))
    assert one.verdict is FitVerdict.DOES_NOT_FIT
    assert one.sentence.endswith("on 80 GiB × 0.9 - 1 GiB: short by 70.3 GiB")


@pytest.mark.parametrize(
    ("gb", "device", "devices"),
    [
        (1.2, "1g.5gb", 1),
        (2.5, "1g.6gb", 1),
        (6.4, "1g.10gb", 1),
        (2, "1g.6gb", 1),
        (16, "1g.20gb", 1),
        (16, "2g.20gb", 1),
        (16, "L4", 1),
        (5, "1g.10gb", 1),
        (30, "3g.40gb", 1),
        (30, "1g.35gb", 1),
        (9, "1g.12gb", 1),
        (65, "H100", 1),
        (65, "3g.90gb", 1),
        (20, "2g.24gb", 1),
        (141, "H100", 2),
        (141, "B200", 1),
        (40, "3g.47gb", 1),
        (40, "3g.71gb", 1),
        (63, "H100", 1),
        (63, "3g.71gb", 1),
        (240, "H100", 4),
        (240, "H200", 2),
        (810, "H200", 8),
        (220, "H100", 4),
        (690, "H200", 8),
        (690, "B200", 4),
    ],
)
def test_no_device_of_the_reference_is_refused(gb, device, devices):
    memory = mig(device) if "gb" in device else memory_of("nvidia.com/gpu", device)
    load = needs_of({"tensor-parallel-size": str(devices)}, model(gb), devices)
    assert judge(load, memory).verdict is not FitVerdict.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("gb", "device", "devices"),
    [
        (6.4, "1g.6gb", 1),
        (16, "1g.10gb", 1),
        (30, "L4", 1),
        (30, "1g.24gb", 1),
        (65, "3g.40gb", 1),
        (141, "H100", 1),
        (141, "H200", 1),
        (240, "H100", 2),
        (240, "H200", 1),
        (810, "H100", 8),
        (690, "H100-80GB", 8),
    ],
)
def test_a_device_below_the_weights_is_refused(gb, device, devices):
    memory = mig(device) if "gb" in device else memory_of("nvidia.com/gpu", device)
    load = needs_of({"tensor-parallel-size": str(devices)}, model(gb), devices)
    fit = judge(load, memory)
    assert fit.verdict is FitVerdict.DOES_NOT_FIT
    assert "short by" in fit.sentence


@pytest.mark.parametrize(
    ("options", "config", "kib_per_token"),
    [
        ({}, LLAMA_8B, 128),
        ({}, LLAMA_70B, 320),
        ({"kv-cache-dtype": "fp8"}, LLAMA_8B, 64),
        ({"kv-cache-dtype": "fp8_e4m3"}, LLAMA_8B, 64),
        ({"dtype": "float32"}, LLAMA_8B, 256),
        ({"tensor-parallel-size": "4"}, LLAMA_8B, 128),
        ({"tensor-parallel-size": "16"}, LLAMA_8B, 256),  # more devices than heads: each has a copy
        ({}, {**LLAMA_8B, "head_dim": 256}, 256),
        ({}, {"architectures": ["LlavaForConditionalGeneration"], "text_config": LLAMA_8B}, 128),
    ],
)
def test_kv_cache_of_a_token(options, config, kib_per_token):
    assert needs_of(options, model(16, config), 1).kv_per_token == Range(kib_per_token * 1024, kib_per_token * 1024)


def test_latent_attention_keeps_one_vector_per_layer():
    config = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "kv_lora_rank": 512}
    load = needs_of({}, model(690, {**config, "qk_rope_head_dim": 64, "num_attention_heads": 128}), 8)
    assert load.kv_per_token.most == 61 * 576 * 2


@pytest.mark.parametrize("config", [{"sliding_window": 4096}, {"layer_types": ["linear"]}, {"architectures": ["Bert"]}])
def test_a_cache_that_may_be_smaller_refuses_nothing(config):
    assert needs_of({}, model(16, LLAMA_8B | config), 1).kv_per_token.least == 0


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"max-model-len": "32768"}, Range(32_768, 32_768)),
        ({"max-model-len": "32k"}, Range(32_000, 32_000)),
        ({"max-model-len": "32K"}, Range(32_768, 32_768)),
        ({"max-model-len": "auto"}, UNKNOWN),
        ({"max-model-len": "-1"}, UNKNOWN),
        ({"max-model-len": "9" * 99}, UNKNOWN),
        ({}, Range(8192, 8192)),
    ],
)
def test_context_length(options, tokens):
    assert needs_of(options, model(16, LLAMA_8B), 1).context == tokens


def test_context_length_is_multiplied_by_yarn_alone():
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    llama = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    assert needs_of({}, model(16, LLAMA_8B | yarn), 1).context == Range(8192, 32_768)
    assert needs_of({}, model(16, LLAMA_8B | llama), 1).context == Range(8192, 8192)


@pytest.mark.parametrize(
    ("options", "config", "gb"),
    [
        ({}, LLAMA_8B, Range(16, 16)),
        ({"quantization": "fp8"}, LLAMA_8B, Range(8, 16)),
        ({"quantization": "fp8"}, LLAMA_8B | {"quantization_config": {"bits": 8}}, Range(16, 16)),
        ({}, LLAMA_8B | {"torch_dtype": "float32"}, Range(8, 8)),
        ({"dtype": "float32"}, LLAMA_8B, Range(32, 32)),
        ({"quantization": "fp8"}, None, Range(16, 16)),  # stated as loaded
        ({"cpu-offload-gb": "2"}, LLAMA_8B, Range(16 - 2 * GIB / 1e9, 16)),
        ({"data-parallel-size": "2"}, LLAMA_8B, Range(8, 16)),
    ],
)
def test_weights_as_loaded(options, config, gb):
    weights = needs_of(options, model(16, config), 1).weights
    assert weights == pytest.approx([each * 1e9 for each in gb])


@pytest.mark.parametrize(
    "options", [{"config": "/etc/vllm.yaml"}, {"tensor-parallel-size": "$(GPUS)"}, {"hf-overrides": "{}"}]
)
def test_hidden_options_refuse_only_what_no_option_could_help(options):
    memory = memory_of("nvidia.com/gpu", "NVIDIA-L4")
    assert judge(needs_of(options, model(60), 4), memory).verdict is FitVerdict.UNKNOWN
    assert judge(needs_of(options, model(600), 4), memory).verdict is FitVerdict.DOES_NOT_FIT


@pytest.mark.parametrize("text", ["-1", "0", "x", "nan", "inf", "1e9", "9" * 99, "", "²"])
def test_absurd_options_count_as_absent(text):
    names = ("tensor-parallel-size", "pipeline-parallel-size", "gpu-memory-utilization", "cpu-offload-gb")
    files = model(16, LLAMA_8B)
    assert needs_of(dict.fromkeys(names, text), files, 1) == needs_of({}, files, 1)


@pytest.mark.parametrize("value", [-1, 0, True, "8", 1.5, None, [], {}, 10**30, math.nan, math.inf])
def test_absurd_configurations_are_unknown(value):
    absurd = {**dict.fromkeys(LLAMA_8B, value), "rope_scaling": {"factor": value}, "text_config": value}
    load = needs_of({}, ModelFiles(Range(16e9, 16e9), absurd, "test"), 1)
    assert load.kv_per_token == UNKNOWN and load.context == UNKNOWN
    assert judge(load, Range(80 * GIB, 80 * GIB)).verdict is FitVerdict.UNKNOWN


@pytest.mark.parametrize(
    "index",
    [None, [], {}, {"metadata": None}]
    + [{"metadata": {"total_size": size}} for size in (-1, 0, True, "16e9", 1e15, 10**400, math.nan, math.inf, [], {})],
)
def test_absurd_indexes_are_unknown(index):
    assert math.isnan(read_total_size(index))


def test_files_of_several_formats_are_not_added_up():
    sizes = {"model-1.safetensors": 8e9, "model-2.safetensors": 8e9, "consolidated.safetensors": 16e9}
    assert weights_of_files(sizes | {"pytorch_model.bin": 16e9}) == Range(16e9, 16e9)
    assert weights_of_files({"a.safetensors": 5e9, "b.safetensors": 8e9}) == Range(8e9, 13e9)
    assert weights_of_files({"model.safetensors": possible_size(-1)}) == UNKNOWN
    assert weights_of_files({"a.gguf": 5e9, "b.gguf": 8e9}) == UNKNOWN


@pytest.mark.parametrize(
    ("resource", "product", "gib"),
    [
        ("nvidia.com/gpu", "nvidia-h100-80gb", 80),
        ("nvidia.com/mig-3g.40gb", "", 40),
        ("nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", 10),
        ("nvidia.com/gpu", "a100", 80),  # of 40 or 80
        ("nvidia.com/gpu", "", math.inf),
        ("amd.com/gpu", "MI300X", 192),
        ("amd.com/cpx_nps1", "MI300X", 192),
        ("amd.com/gpu", "MI9000X", math.inf),
        ("nvidia.com/mig-bogus", "NVIDIA-L4", math.inf),
    ],
)
def test_most_memory_of_a_device(resource, product, gib):
    assert memory_of(resource, product).most == gib * GIB


def test_a_shared_device_may_have_nothing_left():
    assert memory_of("nvidia.com/gpu.shared", "NVIDIA-L4").least == 0
