"""The source of the weights that a pod loads: annotations, KServe, and command lines of engines."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.pods.template import read_model_source, read_template
from autoscaler.config.weights.source import parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"matchExpressions": [{"key": "weights.vllm-autoscaler.io/0123", "operator": "In", "values": ["ready"]}]}
OURS = "vllm-autoscaler.io/weights"
CACHED = "internal.serving.kserve.io/localmodel-sourceuri"
INITIALIZED = "internal.serving.kserve.io/storage-initializer-sourceuri"


def pod(*arguments: str, env: dict[str, str] | None = None, init: list[dict] | None = None) -> PodSpec:
    container = {"name": "main", "args": list(arguments)}
    container["env"] = [{"name": name, "value": value} for name, value in (env or {}).items()]
    return msgspec.json.decode(
        msgspec.json.encode({"containers": [container], "initContainers": init or []}), type=PodSpec
    )


def source(spec: PodSpec, annotations: dict[str, str] | None = None) -> str:
    return str(read_model_source(spec, annotations or {}) or "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["vllm", "serve", "org/m"], "hf://org/m@main"),
        (["vllm", "serve", "org/m", "--revision", COMMIT], f"hf://org/m@{COMMIT}"),
        (["--model=org/m", "--revision=v1.0"], "hf://org/m@v1.0"),
        (["sh", "-c", f"vllm serve org/m --revision {COMMIT} --served-model-name chat"], f"hf://org/m@{COMMIT}"),
        (["python3", "-m", "sglang.launch_server", "--model-path", "org/m", "--revision", "v2"], "hf://org/m@v2"),
        (["text-generation-launcher", "--model-id", "org/m", "--revision", "v3"], "hf://org/m@v3"),
        (["trtllm-serve", "org/m"], "hf://org/m@main"),
        (["vllm", "serve", "s3://bucket/models/m/", "--load-format", "runai_streamer"], "s3://bucket/models/m"),
        (["vllm", "serve", "gs://bucket/m"], "gs://bucket/m"),
        (["vllm", "serve", "az://container/m"], "az://container/m"),
        (["vllm", "serve", f"/weights/hub/models--org--m/snapshots/{COMMIT}"], f"hf://org/m@{COMMIT}"),
        (["vllm", "serve", "/models/llama"], ""),
        (["vllm", "serve", "gpt2"], ""),
        (["vllm", "serve", "org/m", "--revision", "../../x"], ""),
        (["vllm", "serve", "org/../m"], ""),
        (["vllm", "serve", "org/m:Q4_K_M"], ""),
        (["proxy", "--port", "80"], ""),
        ([], ""),
    ],
)
def test_source_is_read_from_the_command_line(arguments: list[str], expected: str):
    spec = pod(*arguments)
    assert source(spec) == read_template(spec).source == expected


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        (["vllm", "serve", "$(MODEL)"], {"MODEL": "org/m"}, "hf://org/m@main"),
        (["text-generation-launcher"], {"MODEL_ID": "org/m", "REVISION": "v1"}, "hf://org/m@v1"),
        (["text-generation-launcher", "--model-id", "org/m"], {"REVISION": "v1"}, "hf://org/m@v1"),
        ([], {"HF_MODEL_ID": "org/m"}, "hf://org/m@main"),
        ([], {"MODEL_NAME": "org/m", "MODEL_REVISION": COMMIT}, f"hf://org/m@{COMMIT}"),
        ([], {"MODEL_NAME": "s3://bucket/m"}, "s3://bucket/m"),
        ([], {"MODEL_NAME": "chat"}, ""),
        (["vllm", "serve", "org/m"], {"MODEL_NAME": "org/other", "REVISION": "v9"}, "hf://org/m@main"),
    ],
)
def test_variables_name_the_source_when_no_option_does(arguments: list[str], env: dict[str, str], expected: str):
    assert source(pod(*arguments, env=env)) == expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({OURS: "hf://org/stated@v1", CACHED: "hf://org/cached"}, "hf://org/stated@v1"),
        ({CACHED: "hf://org/cached:v2", INITIALIZED: "pvc://claim/m"}, "hf://org/cached@v2"),
        ({INITIALIZED: "hf://org/m"}, "hf://org/m@main"),
        ({INITIALIZED: "s3://bucket/m"}, "s3://bucket/m"),
        ({INITIALIZED: "oci://registry/m:1"}, "hf://org/engine@main"),
        ({OURS: "ftp://x"}, "hf://org/engine@main"),
    ],
)
def test_annotations_precede_the_command_line(annotations: dict[str, str], expected: str):
    assert source(pod("vllm", "serve", "org/engine"), annotations) == expected


def test_storage_initializer_names_the_source_of_a_path():
    init = [{"name": "storage-initializer", "args": ["hf://org/m:v1", "/mnt/models"]}]
    assert source(pod("--model", "/mnt/models", init=init)) == "hf://org/m@v1"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, False),
        ({"nodeSelector": {"weights.vllm-autoscaler.io/0123": "ready"}}, True),
        ({"nodeSelector": {"fluid.io/s-team-chat": "true"}}, True),
        ({"nodeSelector": {"fluid.io/dataset-num": "1"}}, False),
        ({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": TERM}]}}}, True),
        ({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}}, True),
        ({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {}}]}}}, False),
        ({"affinity": {"podAffinity": {}}}, False),
    ],
)
def test_pod_is_steered_when_affinity_names_a_label_of_weights(spec: dict, expected: bool):
    assert read_template(msgspec.convert({"containers": [{}], **spec}, PodSpec)).steered is expected


@given(st.lists(st.text(), max_size=6), st.dictionaries(st.sampled_from(["MODEL_ID", "REVISION"]), st.text()))
def test_any_command_line_gives_a_valid_source_or_none(arguments: list[str], env: dict[str, str]):
    found = read_template(pod("vllm", "serve", *arguments, env=env)).source
    assert not found or str(parse(found)) == found
