"""Pod templates: the engine's container, its command line and port, and the devices of a pod."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.pods.template import Facts, engine_container, read_template
from tests.harness.calls import counted_calls

GPU = {"limits": {"nvidia.com/gpu": "1"}}


def template(*containers: dict, **spec: object) -> Facts:
    return read_template(pod_spec(*containers, **spec))


def pod_spec(*containers: dict, **spec: object) -> PodSpec:
    return msgspec.json.decode(msgspec.json.encode({"containers": list(containers), **spec}), type=PodSpec)


def needs(counts: dict[str, object], **more: object) -> dict:
    return {"resources": {"limits": counts}, **more}


def test_image_is_that_of_the_engine():
    helper = {"name": "proxy", "image": "envoy"}
    assert template(helper, {"name": "c", "image": "vllm/vllm-openai:v1", **needs({"nvidia.com/gpu": "1"})}).image == (
        "vllm/vllm-openai:v1"
    )
    assert template().image == ""


@pytest.mark.parametrize(
    ("arguments", "model", "port"),
    [
        (["--model", "org/m"], "org/m", 8000),
        (["--model=org/m", "--served-model-name=chat", "--port=9000"], "chat", 9000),
        (["vllm", "serve", "org/m", "--served-model-name", "chat", "alias"], "chat", 8000),
        (["serve", "org/m", "--tensor-parallel-size", "4"], "org/m", 8000),
        (["vllm", "serve", "org/m", "--port=8001", "--port=8002"], "org/m", 8002),
        (["-m", "sglang.launch_server", "--model-path", "org/m", "--port", "30000"], "org/m", 30000),
        (["sh", "-c", "exec vllm serve org/m --port 8001"], "org/m", 8001),
        (["sh", "-c", "vllm serve org/m \\\n  --port 8001  # the probe's\n"], "org/m", 8001),
        (["sh", "-c", "proxy --port 8000 & vllm serve org/m --port 8200; wait"], "org/m", 8200),
        (["sh", "-c", "vllm serve org/m --port 8200 & proxy --port=8000"], "org/m", 8200),
        (["bash", "-ec", "export PORT=8201\nvllm serve org/m --port $PORT"], "org/m", 8201),
        (["sh", "-c", "PORT=8202 && vllm serve org/m --port ${PORT}"], "org/m", 8202),
        (["sh", "-c", "vllm serve org/m --port ${UNSET:-8203}"], "org/m", 8203),
        (["sh", "-c", "vllm serve org/m --port $UNSET"], "org/m", 8000),
        (["--model", "$(MODEL)"], "", 8000),
        (["serve", "--port", "none"], "", 8000),
        (["sh", "-c", "vllm 'unbalanced"], "", 8000),
        (["--served-model-name", "two words"], "", 8000),
        ([], "", 8000),
    ],
)
def test_model_and_port_are_read_from_arguments(arguments: list[str], model: str, port: int):
    facts = template({"name": "vllm", "args": arguments})
    assert (facts.model, facts.port) == (model, port)


@pytest.mark.parametrize(
    ("arguments", "engine", "model", "port"),
    [
        (["python3", "-m", "sglang.launch_server", "--model-path", "org/m"], "sglang", "org/m", 30000),
        (["bash", "-lc", "exec python3 -m sglang.launch_server --model-path org/m"], "sglang", "org/m", 30000),
        (["sglang", "serve", "--model-path", "org/m", "--port", "8000"], "sglang", "org/m", 8000),
        (["text-generation-launcher", "--model-id", "org/m"], "tgi", "org/m", 80),
        (["--model-id", "org/m"], "tgi", "org/m", 80),
        (["trtllm-serve", "org/m", "--tp_size", "2"], "trtllm", "org/m", 8000),
        (["trtllm-serve", "serve", "org/m", "--port", "8001"], "trtllm", "org/m", 8001),
        (["tritonserver", "--model-repository=/models"], "triton", "", 8002),
        (["/usr/bin/vllm", "serve", "org/sglang"], "vllm", "org/sglang", 8000),
        (["--model", "org/sglang"], "", "org/sglang", 8000),
        (["lmdeploy", "serve", "api_server", "org/m"], "", "", 8000),
        (["ray", "serve", "run", "app:build"], "", "", 8000),
        (["vllm", "serve", "--port", "8001", "org/m"], "vllm", "", 8001),
    ],
)
def test_engine_and_default_port_follow_from_the_program(arguments: list[str], engine: str, model: str, port: int):
    facts = template({"name": "main", "args": arguments})
    assert (facts.engine, facts.model, facts.port) == (engine, model, port)


def test_tgi_options_are_read_from_the_environment_too():
    env = [{"name": "PORT", "value": "8081"}, {"name": "MODEL_ID", "value": "org/m"}]
    facts = template({"name": "main", "command": ["text-generation-launcher"], "env": env})
    assert (facts.model, facts.port, facts.states_port) == ("org/m", 8081, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "$(MODEL)", "--port", "$(PORT)"],
        ["sh", "-c", "vllm serve $(MODEL) --port=$(PORT)"],
        ["sh", "-c", 'vllm serve "$MODEL" --port ${PORT}'],
        ["sh", "-c", "vllm serve $MODEL --port $(HOST_PORT)"],
    ],
)
def test_variables_of_the_container_are_substituted(arguments: list[str]):
    env = [
        {"name": "MODEL", "value": "org/m"},
        {"name": "PORT", "value": "8081"},
        {"name": "HOST_PORT", "value": "$(PORT)"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    facts = template({"args": arguments, "env": env})
    assert (facts.model, facts.port) == ("org/m", 8081)


@pytest.mark.parametrize("port", ["$(SECRET)", "$$(PORT)", "$(GROWS)"])
def test_port_is_unknown_when_its_variable_is(port: str):
    grows = [{"name": "A", "value": "1" * 200}, {"name": "GROWS", "value": "$(A)$(A)"}]
    secret = {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    env = [{"name": "PORT", "value": "8081"}, secret, *grows]
    assert template({"args": ["serve", "org/m", "--port", port], "env": env}).port == 8000


METRICS, HTTP = {"name": "metrics", "containerPort": 9100}, {"name": "http", "containerPort": 9200}


@pytest.mark.parametrize(
    ("container", "port"),
    [
        ({"ports": [HTTP, METRICS]}, 9100),
        ({"ports": [HTTP, {"name": "vllm-metrics", "containerPort": 9101}]}, 9101),
        ({"ports": [HTTP]}, 9200),
        ({"ports": [{"name": "https", "containerPort": 9201}, {"name": "nixl", "containerPort": 5557}]}, 8000),
        ({"ports": [HTTP], "readinessProbe": {"httpGet": {"path": "/health", "port": 9300}}}, 9300),
        ({"ports": [{"name": "api", "containerPort": 9400}], "startupProbe": {"tcpSocket": {"port": "api"}}}, 9400),
        ({"livenessProbe": {"exec": {"command": ["true"]}}}, 8000),
        ({"livenessProbe": {"httpGet": {"port": "nowhere"}}}, 8000),
        ({"livenessProbe": {"httpGet": {"port": 99999}}}, 8000),
        ({"args": ["--port=9500"], "ports": [METRICS]}, 9500),
        ({"args": ["--port=$(PORT)"], "ports": [METRICS]}, 9100),
    ],
)
def test_port_is_the_named_or_probed_one_without_an_option(container: dict, port: int):
    assert template(container).port == port


ENGINE = {"name": "engine", "args": ["serve", "org/m", "--port=8200"]}
PROBE = {"readinessProbe": {"httpGet": {"port": 8000}}}
PROXY = {"name": "proxy", "args": ["--port=8000", "--vllm-port=8200"], "ports": [{"name": "http", "containerPort": 1}]}
GUARD = {"name": "guard", "args": ["--model", "org/guard", "--port=9000"]}
AGENT = {"name": "agent", "command": ["agent", "--port", "8080"]}


@pytest.mark.parametrize(
    ("containers", "spec"),
    [
        ([AGENT, GUARD, PROXY | PROBE, ENGINE | {"resources": GPU}], {}),
        ([ENGINE | {"resources": {"limits": {"amd.com/gpu": 1}}}, PROXY | PROBE], {}),
        ([GUARD, ENGINE | {"resources": {"limits": {"example.com/npu": 1}}}], {}),
        ([GUARD, ENGINE | {"resources": {"claims": [{"name": "gpu"}]}}], {"resourceClaims": [{"name": "gpu"}]}),
        ([GUARD | {"resources": GPU}, ENGINE | {"resources": {"limits": {"nvidia.com/gpu": "4"}}}], {}),
        ([GUARD | {"resources": GPU}, ENGINE | {"resources": GPU} | PROBE], {}),
        ([GUARD, ENGINE | PROBE], {}),
        ([AGENT, ENGINE], {}),
        ([GUARD], {"initContainers": [ENGINE | {"resources": GPU, "restartPolicy": "Always"}]}),
        ([ENGINE], {"initContainers": [GUARD | {"resources": GPU}]}),
    ],
)
def test_engine_is_the_container_with_devices_or_a_probe(containers: list[dict], spec: dict):
    chosen = engine_container(pod_spec(*containers, **spec))
    assert chosen is not None
    assert chosen.name == "engine"
    facts = template(*containers, **spec)
    assert (facts.model, facts.port) == ("org/m", 8200)


@pytest.mark.parametrize(
    ("resources", "gpus", "resource"),
    [
        ({"limits": {"nvidia.com/gpu": "4"}}, 4.0, "nvidia.com/gpu"),
        ({"requests": {"nvidia.com/mig-3g.40gb": "1"}}, 1.0, "nvidia.com/mig-3g.40gb"),
        ({"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": 2}}, 2.0, "nvidia.com/gpu"),
        ({"limits": {"amd.com/gpu": "4", "rdma/ib": "1"}}, 4.0, "amd.com/gpu"),
        ({"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}}, math.nan, "nvidia.com/gpu"),
        ({"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}}, math.nan, "nvidia.com/gpu"),
        ({"limits": {"nvidia.com/gpu": "1", "koordinator.sh/gpu-core": "50"}}, math.nan, "nvidia.com/gpu"),
        ({"limits": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}}, math.nan, ""),
        ({"limits": {"aliyun.com/gpu-mem": "8"}}, math.nan, ""),
        ({"limits": {"nvidia.com/gpu.shared": "1"}}, 1.0, "nvidia.com/gpu.shared"),
        ({"limits": {"nvidia.com/gpu": "1", "example.com/cores-of-nic": "1"}}, 1.0, "nvidia.com/gpu"),
        ({"limits": {"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "500"}}, math.nan, "gpu.intel.com/i915"),
        ({"limits": {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "1"}}, 5.0, ""),
        ({"limits": {"cpu": "4", "hugepages-2Mi": "1Gi", "ephemeral-storage": "1Gi"}}, 0.0, ""),
        ({"limits": {"vpc.amazonaws.com/efa": "1"}}, 0.0, ""),
        ({"limits": {"nvidia.com/gpu": "0"}}, 0.0, ""),
        ({"limits": {"nvidia.com/gpu": "a lot"}}, math.nan, "nvidia.com/gpu"),
        ({"limits": {"nvidia.com/gpu": "9999"}}, math.nan, "nvidia.com/gpu"),
        ({"limits": {"gpu.intel.com/millicores": "500"}}, math.nan, ""),
        ({"limits": {"example.com/gpu": "2"}}, math.nan, ""),
        ({"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"}}, math.nan, ""),
        ({"limits": {"nvidia.com/gpu": 1, "deviceclass.resource.kubernetes.io/nic": 1}}, math.nan, "nvidia.com/gpu"),
    ],
)
def test_devices_are_counted_or_unknown(resources: dict, gpus: float, resource: str):
    facts = template({"resources": resources})
    assert facts.gpus == pytest.approx(gpus, nan_ok=True)
    assert facts.resource == resource
    assert bool(facts.unclear) == math.isnan(gpus)


@pytest.mark.parametrize(
    ("annotations", "env", "limits", "word"),
    [
        ({"gpu-fraction": "0.5"}, [], {}, "the annotation gpu-fraction: '0.5' gives it a share"),
        ({"gpu-memory": "11000"}, [], {}, "gpu-memory"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, [], {"nvidia.com/gpu": "1"}, "gpu-fraction"),
        ({}, [("NVIDIA_VISIBLE_DEVICES", "all")], {}, "NVIDIA_VISIBLE_DEVICES gives it GPUs"),
        ({}, [("NVIDIA_VISIBLE_DEVICES", "all")], {"nvidia.com/gpu": "1"}, ""),
        ({}, [("NVIDIA_VISIBLE_DEVICES", "none")], {}, ""),
        ({"gpu-fraction": ""}, [], {}, ""),
    ],
)
def test_gpus_are_unknown_when_a_pod_shares_one(annotations: dict, env: list, limits: dict, word: str):
    container = {"env": [{"name": name, "value": value} for name, value in env], **needs(limits)}
    facts = read_template(pod_spec(container), annotations)
    assert math.isnan(facts.gpus) == bool(word)
    assert word in facts.unclear


def test_gpus_are_unknown_with_resource_claims():
    facts = template({}, resourceClaims=[{"name": "gpu"}])
    assert math.isnan(facts.gpus)
    assert "resourceClaims" in facts.unclear


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({"initContainers": [needs({"nvidia.com/gpu": 4})]}, 4),  # an init container holds what the engine holds later
        ({"initContainers": [needs({"nvidia.com/gpu": 1})]}, 2),
        ({"initContainers": [needs({"nvidia.com/gpu": 1}, restartPolicy="Always")]}, 3),
        (
            {
                "initContainers": [
                    needs({"nvidia.com/gpu": 1}, restartPolicy="Always"),
                    needs({"nvidia.com/gpu": 3}),
                    needs({"nvidia.com/gpu": 1}, restartPolicy="Always"),
                ]
            },
            4,
        ),
        ({"overhead": {"nvidia.com/gpu": "1", "cpu": "250m"}}, 3),
    ],
)
def test_devices_of_a_pod_are_its_effective_request(spec: dict, gpus: float):
    assert template(needs({"nvidia.com/gpu": 2}), **spec).gpus == gpus


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=6), st.lists(st.integers(0, 8), max_size=4))
def test_devices_of_a_pod_are_the_most_in_use_at_once(init: list[tuple[int, bool]], main: list[int]):
    """A second implementation: simulate the start of the pod and note the devices in use at each step."""
    held, most = 0, 0
    for count, stays in init:
        most = max(most, held + count)
        held += count if stays else 0
    most = max(most, held + sum(main))

    def container(count: int) -> dict:
        return needs({"amd.com/gpu": str(count)})

    starting = [container(count) | ({"restartPolicy": "Always"} if stays else {}) for count, stays in init]
    assert template(*map(container, main), initContainers=starting).gpus == most


def test_many_long_scripts_cost_no_more_than_one():
    """A user who may create a Deployment must not be able to slow the daemon down."""
    container = {"args": ["-c", "x" * 16_000]}
    with counted_calls() as one:
        template(container)
    with counted_calls() as many:
        template(*[{"args": container["args"] * 90}] * 9)
    assert many.made < 2 * one.made


def test_product_is_read_from_selector_or_required_affinity():
    label = "nvidia.com/gpu.product"
    assert template(nodeSelector={label: "H100"}).product == (label, "H100")
    assert template(nodeSelector={"amd.com/gpu.product-name": "MI300X"}).product == (
        "amd.com/gpu.product-name",
        "MI300X",
    )

    def affinity(*terms: dict) -> dict:
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}

    def term(*values: str) -> dict:
        return {"matchExpressions": [{"key": label, "operator": "In", "values": list(values)}]}

    assert template(affinity=affinity(term("H100"))).product == (label, "H100")
    assert template(affinity=affinity(term("H100", "A100"))).product is None
    assert template(affinity=affinity(term("H100"), term("A100"))).product is None


VLLM = ["vllm", "serve", "m", "--shutdown-timeout"]
SLEEP = {"preStop": {"sleep": {"seconds": 15}}}


@pytest.mark.parametrize(
    ("container", "grace_s", "drain_s"),
    [
        ({"command": ["vllm", "serve", "m"]}, 60, 0.0),
        ({"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"]}, None, 0.0),
        ({"image": "vllm/vllm-openai:v0.33.0", "args": ["--model", "m"]}, None, 0.0),
        ({"image": "vllm/vllm-openai:v0.33.0", "args": ["--shutdown-timeout=20"], "lifecycle": SLEEP}, None, 30.0),
        ({"command": [*VLLM, "20"], "lifecycle": SLEEP}, 120, 35.0),
        ({"command": [*VLLM, "120"]}, None, 30.0),
        ({"command": [*VLLM, "120"]}, 0, 0.0),
        ({"command": [*VLLM, "$(TIME)"]}, None, math.nan),
        ({"command": [*VLLM, "20"], "lifecycle": {"preStop": {"httpGet": {"port": 1}}}}, None, math.nan),
        (
            {"command": [*VLLM, "20"], "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 1m"]}}}},
            90,
            80.0,
        ),
        ({"command": ["sglang", "serve", "m"]}, 45, 45.0),
        ({"image": "my/engine"}, 45, math.nan),
        ({"image": "my/vllm-proxy"}, 45, math.nan),
    ],
)
def test_time_of_a_pod_that_leaves_is_read(container: dict, grace_s: int | None, drain_s: float):
    facts = template({"name": "engine", **container}, terminationGracePeriodSeconds=grace_s)
    assert facts.drain_s == pytest.approx(drain_s, nan_ok=True)
    assert facts == template({"name": "engine", **container}, terminationGracePeriodSeconds=grace_s)
