"""The requests that an engine can run at once, from its command line."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.pods.template import COMMAND_LIMIT, stated_slots

SERVE = ("vllm", "serve", "org/m")
SGLANG = ("python3", "-m", "sglang.launch_server", "--model-path", "org/m")


def slots(*args: str, **container: object) -> float:
    body = {"containers": [{"name": "engine", "args": list(args), **container}]}
    return stated_slots(msgspec.json.decode(msgspec.json.encode(body), type=PodSpec))


@pytest.mark.parametrize(
    ("args", "stated"),
    [
        ((*SERVE, "--max-num-seqs", "24"), 24),
        ((*SERVE, "--max-num-seqs=24"), 24),
        ((*SERVE, "--max_num_seqs=24"), 24),
        ((*SERVE, "--max-num-seqs=16", "--max-num-seqs=24"), 24),
        (("--model", "org/m", "--max-num-seqs", "24"), 24),
        (("--max-num-seqs", "24"), 24),
        (("python3", "-m", "vllm.entrypoints.openai.api_server", "--model=org/m", "--max-num-seqs=24"), 24),
        (("sh", "-c", "exec vllm serve org/m --max-num-seqs 24 --port 8001"), 24),
        (("sh", "-c", "proxy --port 8000 & vllm serve org/m --port 8200 --max-num-seqs=24; wait"), 24),
        (("sh", "-c", "SEQS=24; vllm serve org/m --max-num-seqs $SEQS"), 24),
        (("sh", "-c", "vllm serve org/m --max-num-seqs ${SEQS:-24}"), 24),
        ((*SERVE, "--config", "/etc/vllm.yaml", "--max-num-seqs=24"), 24),
        ((*SGLANG, "--max-running-requests", "24"), 24),
        ((*SGLANG, "--max-running-requests", "24", "--dp-size", "1"), 24),
    ],
)
def test_slots_are_read_from_the_command_line(args: tuple[str, ...], stated: float):
    assert slots(*args) == stated


@pytest.mark.parametrize(
    ("args", "stated"),
    [
        ((*SERVE, "--max-num-seqs=24", "--data-parallel-size", "4"), 96),
        ((*SERVE, "--max-num-seqs=24", "-dp", "4"), 96),
        ((*SERVE, "--max-num-seqs=24", "--tensor-parallel-size=4", "-pp", "2"), 24),
    ],
)
def test_each_data_parallel_rank_has_the_stated_slots(args: tuple[str, ...], stated: float):
    assert slots(*args) == stated


@pytest.mark.parametrize(
    "args",
    [
        SERVE,
        (*SERVE, "--max-num-batched-tokens", "8192"),
        (*SERVE, "--max-num-seqs"),
        (*SERVE, "--max-num-seqs", "0"),
        (*SERVE, "--max-num-seqs=-1"),
        (*SERVE, "--max-num-seqs=1e3"),
        (*SERVE, "--max-num-seqs=24.5"),
        (*SERVE, "--max-num-seqs=\u0662\u0664"),
        (*SERVE, "--max-num-seqs=1000001"),
        (*SERVE, "--max-num-seqs=" + "9" * 5000),
        (*SERVE, "--max-num-seqs=1000000", "-dp", "1000000"),
        (*SERVE, "--max-num-seqs=24", "-dp", "x"),
        (*SERVE, "--max-num-seqs", "$(UNKNOWN)"),
        ("sh", "-c", "vllm serve org/m --max-num-seqs $UNKNOWN"),
        ("sh", "-c", "vllm 'unbalanced --max-num-seqs 24"),
        (*SERVE, "--config", "/etc/vllm.yaml"),
        (*SERVE, "--max-num-seqs=24", "-dp=4", "-dpl=1"),
        (*SERVE, "--max-num-seqs=24", "--data-parallel-size=4", "--data-parallel-rank", "2"),
        (*SERVE, "--max-num-seqs=24", "--data-parallel-size=4", "--data-parallel-external-lb"),
        (*SGLANG, "--max-running-requests=24", "--dp-size=4"),
        (*SGLANG, "--max-running-requests=24", "--dp", "4"),
        ("text-generation-launcher", "--model-id=org/m", "--max-concurrent-requests=24", "--max-batch-size=24"),
    ],
)
def test_slots_are_unknown_when_no_option_states_them_plainly(args: tuple[str, ...]):
    assert math.isnan(slots(*args))


def test_slots_are_read_with_variables_of_the_container():
    env = [{"name": "SEQS", "value": "24"}]
    assert slots(*SERVE, "--max-num-seqs=$(SEQS)", env=env) == 24
    secret = [{"name": "SEQS", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    assert math.isnan(slots(*SERVE, "--max-num-seqs=$(SEQS)", env=secret))


def test_slots_are_unknown_when_the_command_line_is_very_long():
    assert math.isnan(slots(*SERVE, "--max-num-seqs=24", "x" * COMMAND_LIMIT))


@given(args=st.lists(st.text(max_size=20) | st.sampled_from(["--max-num-seqs", "-dp", "24", "vllm", "serve"])))
def test_any_command_line_gives_possible_slots(args: list[str]):
    found = slots(*args)
    assert math.isnan(found) or 1 <= found <= 1_000_000
