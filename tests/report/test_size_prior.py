"""The step time that is assumed from the name of a model and of its GPUs."""

import math

import numpy as np
import pytest

from autoscaler.report.size_prior import LEAST_GAP_S, MOST_GAP_S, USUAL_GAP_S, assume_gap_s, parameters_of


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
        ("acme/our-chat-70b-v2", 70),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7),
        ("acme/moe-8x7b", 56),
        ("Qwen/Qwen3-30B-A3B", 3),
        ("acme/tiny-350m", 0.35),
        ("acme/chat-1.5b-awq", 1.5),
        ("gpt-4", math.nan),
        ("acme/v2b-beta", math.nan),  # a version, not a size
        ("", math.nan),
    ],
)
def test_size_is_read_when_the_name_tells_it(model, billions):
    assert parameters_of(model) / 1e9 == pytest.approx(billions, nan_ok=True)


@pytest.mark.parametrize(
    ("model", "gpus", "product", "gap_s"),
    [
        ("", 1, "", USUAL_GAP_S),
        ("chat-8b", 1, "", USUAL_GAP_S),
        ("chat-70b", 1, "", USUAL_GAP_S * 70 / 8),
        ("chat-70b", 8, "", USUAL_GAP_S * 70 / 64),
        ("chat-8b-fp8", 1, "", USUAL_GAP_S * 1.05 / 2),
        ("chat-8b", 1, "NVIDIA-L4", USUAL_GAP_S * 10),
        ("chat-8b", 1, "NVIDIA-H200", USUAL_GAP_S * 3000 / 4800),
        ("chat-8b", 1, "unheard-of", USUAL_GAP_S),
        ("chat-0.1b", 8, "NVIDIA-H200", LEAST_GAP_S),
        ("chat-405b", 1, "NVIDIA-T4", MOST_GAP_S),
    ],
)
def test_gap_follows_size_and_bandwidth(model, gpus, product, gap_s):
    assert assume_gap_s([model], np.array([float(gpus)]), [product]) == pytest.approx([gap_s])
