"""`check --fit` as one types it."""

import json
from pathlib import Path

import pytest

from tests.cli.study import invoke

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131_072,
}

OFFLINE = [{"name": "HF_HUB_OFFLINE", "value": "1"}]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "meta-llama" / "Llama-3.3-70B-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 141107412992}}')
    return tmp_path / "models"


def manifest(
    tmp_path: Path,
    *options: str,
    resource: str = "nvidia.com/gpu",
    count: int = 2,
    selector: tuple[str, str] = ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb"),
    annotations: dict[str, str] | None = None,
) -> Path:
    command = ["vllm", "serve", "meta-llama/Llama-3.3-70B-Instruct", "--shutdown-timeout=10", *options]
    container = {"name": "engine", "command": command, "resources": {"limits": {resource: count}}}
    file = tmp_path / "deployment.yaml"
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat", "annotations": {"vllm-autoscaler.io/policy": "interactive"} | (annotations or {})},
        "spec": {"template": {"spec": {"nodeSelector": dict([selector]), "containers": [container]}}},
    }
    file.write_text(json.dumps(document))
    return file


def test_a_model_that_cannot_fit_is_refused(tmp_path: Path, models: Path) -> None:
    result = invoke("check", "--fit", "--offline", "--models", models, manifest(tmp_path, "--tensor-parallel-size=2"))
    assert result.exit_code == 1
    assert "does not fit: needs 131.4 GiB of weights and 40 GiB of KV cache for 131,072 tokens" in result.output
    assert "2 × 80 GiB × 0.92 - 2 × 1 GiB: short by 26.2 GiB" in result.output


def test_a_model_that_fits_is_passed_in_silence(tmp_path: Path, models: Path) -> None:
    file = manifest(tmp_path, "-tp", "4", "--max-model-len", "32768", count=4)
    result = invoke("check", "--fit", "--offline", "--models", models, file)
    assert (result.exit_code, "the model" in result.output) == (0, False)


def test_an_unknown_model_is_warned_of(tmp_path: Path) -> None:
    result = invoke("check", "--fit", "--offline", manifest(tmp_path))
    assert result.exit_code == 0
    assert "warning" in result.output
    assert "weights-gb" in result.output


def test_stated_weights_are_compared_with_the_slice(tmp_path: Path) -> None:
    file = manifest(
        tmp_path, resource="nvidia.com/mig-3g.40gb", count=1, annotations={"vllm-autoscaler.io/weights-gb": "71"}
    )
    result = invoke("check", "--fit", "--offline", file)
    assert result.exit_code == 1
    assert "on 40 GiB × 0.92 - 1 GiB" in result.output


def test_weights_that_the_policy_states_are_compared(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "{apiVersion: vllm-autoscaler.io/v1, kind: Policy, metadata: {name: large},"
        " spec: {objective: {ttft: 1s}, capacity: {weightsGb: 71}}}"
    )
    for annotations, fits in (({}, False), ({"vllm-autoscaler.io/weights-gb": "15"}, True)):
        chosen = {"vllm-autoscaler.io/policy": "large"} | annotations
        file = manifest(tmp_path, resource="nvidia.com/mig-3g.40gb", count=1, annotations=chosen)
        result = invoke("check", "--fit", "--offline", "--policies", policy, file)
        assert ("does not fit: needs 66.1 GiB of weights" not in result.output) == fits, result.output


def test_more_devices_than_the_pod_requests_are_warned_of(tmp_path: Path, models: Path) -> None:
    file = manifest(tmp_path, "-tp=8", "--max-model-len=32768", count=4)
    result = invoke("check", "--fit", "--offline", "--models", models, file)
    assert result.exit_code == 0
    assert "need more than the 4 GPUs of a pod" in result.output


def test_options_of_another_engine_are_not_vllms(tmp_path: Path) -> None:
    engine = {"vllm-autoscaler.io/engine": "sglang", "vllm-autoscaler.io/weights-gb": "141"}
    result = invoke("check", "--fit", "--offline", manifest(tmp_path, annotations=engine))
    assert (result.exit_code, "does not fit" in result.output) == (0, False)


def test_slices_do_not_work_together(tmp_path: Path) -> None:
    file = manifest(tmp_path, "-tp=2", resource="nvidia.com/mig-3g.40gb")
    result = invoke("check", "--fit", "--offline", file)
    assert result.exit_code == 1
    assert "slices of a GPU cannot work together" in result.output


@pytest.mark.parametrize("value", ["0", "-1", "nan", "1e9", "seven", "100001", ""])
def test_absurd_stated_weights_are_refused(tmp_path: Path, value: str) -> None:
    file = manifest(tmp_path, annotations={"vllm-autoscaler.io/weights-gb": value})
    result = invoke("check", "--fit", "--offline", file)
    assert result.exit_code == 1
    assert "weights-gb" in result.output


def test_without_the_option_nothing_is_compared(tmp_path: Path) -> None:
    assert "fit" not in invoke("check", manifest(tmp_path)).output
    assert invoke("check", "--offline", manifest(tmp_path)).exit_code == 2


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"command": ["vllm", "serve", "org/a"]}, ""),
        ({"command": ["vllm", "serve", "org/a"], "env": OFFLINE}, "path of a snapshot"),
        ({"command": ["sh", "-c", "vllm serve org/a"]}, "the webhook cannot add --served-model-name"),
        ({"command": ["sh", "-c", "vllm serve org/a --served-model-name a"]}, ""),
    ],
)  # fmt: skip
def test_check_warns_when_the_name_of_a_model_changes(tmp_path: Path, container: dict, words: str) -> None:
    file = manifest(tmp_path)
    document = json.loads(file.read_text())
    template = document["spec"]["template"]
    template["metadata"] = {"annotations": {"vllm-autoscaler.io/weights": "hf://org/a@main"}}
    template["spec"]["containers"] = [{"name": "engine", **container}]
    file.write_text(json.dumps(document))
    result = invoke("check", file)
    assert result.exit_code == 0
    assert ("served-model-name" in result.output) == bool(words)
    assert words in result.output
