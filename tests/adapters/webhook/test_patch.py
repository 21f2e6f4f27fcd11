"""Patches of pods: what is added, what is left as it is, and pods that no API server would send."""

from __future__ import annotations

import base64
import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.pods.node_weights import read_pod_weights
from autoscaler.adapters.webhook.patch import Folder
from autoscaler.adapters.webhook.review import MAX_POD_BYTES, Result, answer
from autoscaler.config.weights.allowed import EVERY_SOURCE, PrivateSources, SourceRules
from autoscaler.config.weights.compile_cache import cache_of
from autoscaler.config.weights.report import label_of
from autoscaler.config.weights.source import parse

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SOURCE = f"hf://{MODEL}@main"
FOLDER = Folder("/mnt/disks/ssd0/weights", "registry.example/vllm-autoscaler:1")
READY = label_of(parse(SOURCE).key)
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
Pod = dict[str, Any]


def engine(*args: str, image: str = "vllm/vllm-openai:v0.33.0", **fields: Any) -> dict[str, Any]:
    return {"name": "vllm", "image": image, "args": list(args or [f"--model={MODEL}"]), **fields}


def pod_of(*containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> Pod:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "llama-", "annotations": annotations or {}},
        "spec": {"containers": list(containers or [engine()]), **spec},
    }


def review(pod: object, **request: Any) -> bytes:
    fields = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "my-team",
        "object": pod,
    }
    head = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    return json.dumps({**head, "request": fields | request}).encode()


def patched(pod: Pod, folder: Folder | None = FOLDER) -> Pod:
    """Return a pod after the patch that the webhook answers with."""
    text, result = answer(review(pod), read_pod_weights, folder)
    response = json.loads(text)["response"]
    assert response["allowed"]
    assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    changed = copy.deepcopy(pod)
    if result is not Result.PATCHED:
        assert response.keys() == {"uid", "allowed"}
        return changed
    assert response["patchType"] == "JSONPatch"
    for operation in json.loads(base64.b64decode(response["patch"])):
        assert operation["op"] == "add"
        *way, last = operation["path"].strip("/").split("/")
        place: Any = changed
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if isinstance(place, list):
            assert last == "-"
            place.append(operation["value"])
        else:
            place[last] = operation["value"]
    return changed


def terms(pod: Pod) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod["spec"]["affinity"]["nodeAffinity"][PREFERRED]
    return found


def test_engine_of_a_hub_gets_every_part() -> None:
    pod = patched(pod_of())
    expression = {"key": READY, "operator": "In", "values": ["ready"]}
    assert terms(pod) == [{"weight": 100, "preference": {"matchExpressions": [expression]}}]
    spec = pod["spec"]
    assert spec["containers"][0]["env"] == [
        {"name": "HF_HUB_CACHE", "value": "/weights/hub"},
        {"name": "HF_HUB_OFFLINE", "value": "1"},
    ]
    assert {each["mountPath"]: each["readOnly"] for each in spec["containers"][0]["volumeMounts"]} == {
        "/weights": True,
        "/node-weights": True,
    }
    assert spec["volumes"][1]["hostPath"] == {"path": FOLDER.host_path, "type": "DirectoryOrCreate"}
    (waits,) = spec["initContainers"]
    assert waits["image"] == FOLDER.image
    assert waits["args"] == ["weights", "wait", SOURCE, "--root=/node-weights", "--into=/weights"]


@pytest.mark.parametrize(
    "affinity",
    [
        {},
        {"podAntiAffinity": {PREFERRED: []}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchFields": []}}]}},
    ],
)
def test_affinity_is_merged_with_what_is_there(affinity: dict[str, Any]) -> None:
    pod = patched(pod_of(affinity=affinity))
    own = affinity.get("nodeAffinity", {}).get(PREFERRED, [])
    assert terms(pod)[: len(own)] == own
    assert len(terms(pod)) == len(own) + 1
    merged = copy.deepcopy(pod["spec"]["affinity"])
    del merged["nodeAffinity"][PREFERRED]
    before = copy.deepcopy(affinity)
    before.setdefault("nodeAffinity", {}).pop(PREFERRED, None)
    assert merged == before


@pytest.mark.parametrize(
    "pod",
    [
        pod_of(),
        pod_of(engine(env=[{"name": "TZ", "value": "UTC"}], volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}])),
        pod_of({"name": "proxy", "image": "i"}, engine(), volumes=[{"name": "shm", "emptyDir": {}}]),
        pod_of(engine("serve", "/weights/models/a-1"), annotations={"vllm-autoscaler.io/weights": "s3://models/a"}),
    ],
)
def test_second_call_changes_nothing(pod: Pod) -> None:
    once = patched(pod)
    assert once != pod
    assert patched(once) == once


def test_pod_that_has_the_snippet_keeps_it() -> None:
    once = patched(pod_of())
    del once["spec"]["affinity"]
    twice = patched(once)
    assert len(terms(twice)) == 1
    del twice["spec"]["affinity"]
    assert twice == once


@pytest.mark.parametrize(
    ("why", "pod"),
    [
        ("its model is not known", pod_of(engine("--port=8000"))),
        ("it is bound to a node", pod_of(nodeName="node-1")),
        ("it runs on Windows", pod_of(os={"name": "windows"})),
        ("its engine is not known", pod_of(engine(image="registry.example/other"))),
        ("it loads a path of its image", pod_of(engine("--model=/models/llama"))),
        ("another model is annotated", pod_of(annotations={"vllm-autoscaler.io/weights": "hf://org/other@main"})),
        ("another revision is annotated", pod_of(
            engine(f"--model={MODEL}", "--revision=v2"), annotations={"vllm-autoscaler.io/weights": SOURCE}
        )),
        ("it states a cache", pod_of(engine(env=[{"name": "HF_HUB_CACHE", "value": "/cache"}]))),
        ("its engine needs other repositories too", pod_of(engine(f"--model={MODEL}", "--tokenizer", "org/other"))),
        ("its engine reads options from a file", pod_of(engine(f"--model={MODEL}", "--config=/etc/vllm.yaml"))),
        ("its engine speculates", pod_of(engine(f"--model={MODEL}", '--speculative-config={"model": "a/b"}'))),
        ("its engine loads adapters", pod_of(engine(f"--model={MODEL}", "--lora-modules", "a=org/adapter"))),
        ("a claim holds the cache", pod_of(
            engine(volumeMounts=[{"name": "cache", "mountPath": "/root/.cache/huggingface"}]),
            volumes=[{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}],
        )),
        ("a claim is at HF_HOME", pod_of(
            engine(env=[{"name": "HF_HOME", "value": "/data/hf"}], volumeMounts=[{"name": "d", "mountPath": "/data"}]),
            volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}],
        )),
        ("something else is at the path", pod_of(
            engine(volumeMounts=[{"name": "w", "mountPath": "/weights"}]), volumes=[{"name": "w", "emptyDir": {}}]
        )),
        ("a volume has the name", pod_of(volumes=[{"name": "weights", "emptyDir": {}}])),
        ("a container has the name", pod_of(initContainers=[{"name": "weights", "image": "i"}])),
        ("its model has 300 characters", pod_of(engine(f"--model=org/{'m' * 300}"))),
        ("its source has 600 characters", pod_of(
            engine("--port=1"), annotations={"vllm-autoscaler.io/weights": f"hf://org/{'m' * 600}@main"}
        )),
        ("its engine is a sidecar", pod_of(
            {"name": "main", "image": "i"}, initContainers=[engine(restartPolicy="Always", ports=[
                {"name": "metrics", "containerPort": 8000}])]
        )),
    ],
)  # fmt: skip
def test_pods_that_could_not_start_from_the_folder_stay(why: str, pod: Pod) -> None:
    assert patched(pod) == pod, why


@pytest.mark.parametrize("annotated", [True, False])
def test_worker_without_a_model_loads_what_its_annotation_states(annotated: bool) -> None:
    annotations = {"vllm-autoscaler.io/weights": SOURCE} if annotated else None
    pod = pod_of(
        engine("ray start --block --address=$(LWS_LEADER_ADDRESS)", command=["sh", "-c"]), annotations=annotations
    )
    changed = patched(pod)
    assert ("initContainers" in changed["spec"]) == annotated
    assert (changed != pod) == annotated


def test_cache_that_ends_with_the_pod_is_replaced() -> None:
    mounts = [{"name": "cache", "mountPath": "/root/.cache/huggingface"}]
    pod = patched(pod_of(engine(volumeMounts=mounts), volumes=[{"name": "cache", "emptyDir": {}}]))
    assert [each["name"] for each in pod["spec"]["volumes"]] == ["cache", "weights", "node-weights"]


def test_pod_with_its_own_mount_of_the_folder_gets_the_affinity() -> None:
    own = {"name": "ssd", "hostPath": {"path": f"{FOLDER.host_path}/hub"}}
    pod = pod_of(engine(env=[{"name": "HF_HUB_CACHE", "value": "/ssd"}]), volumes=[own])
    changed = patched(pod)
    assert len(terms(changed)) == 1
    del changed["spec"]["affinity"]
    assert changed == pod


def test_without_a_folder_only_the_affinity_is_added() -> None:
    changed = patched(pod_of(), folder=None)
    assert len(terms(changed)) == 1
    del changed["spec"]["affinity"]
    assert changed == pod_of()


def test_stated_variables_stay() -> None:
    changed = patched(pod_of(engine(env=[{"name": "HF_HUB_OFFLINE", "value": "0"}])))
    assert changed["spec"]["containers"][0]["env"] == [
        {"name": "HF_HUB_OFFLINE", "value": "0"},
        {"name": "HF_HUB_CACHE", "value": "/weights/hub"},
    ]


SERVED = ["--served-model-name", MODEL]
SERVE = ["vllm", "serve", MODEL]
SERVER = ["python3", "-m", "vllm.entrypoints.openai.api_server"]


@pytest.mark.parametrize(
    ("container", "added"),
    [
        (engine(), SERVED),
        (engine("--model", MODEL, image="vllm/vllm-openai"), SERVED),
        (engine("serve", MODEL, "--port=8000", command=["vllm"]), SERVED),
        (engine("--model", MODEL, "--api-key", "$(KEY)", command=SERVER), SERVED),
        (engine(f"--model={MODEL}", command=["/usr/bin/env", "TZ=UTC", *SERVER]), SERVED),
        ({"name": "vllm", "image": "i", "command": SERVE}, SERVED),
        ({"name": "vllm", "image": "i", "command": ["tini", *SERVE], "args": []}, SERVED),
        (engine("--model=$(M)", command=SERVER, env=[{"name": "M", "value": MODEL}]), SERVED),
        (engine(*SERVE, env=[{"name": "HF_HUB_OFFLINE", "value": "0"}]), SERVED),
        # Its name is stated already, or does not change.
        (engine(*SERVE, "--served-model-name", "llama"), []),
        (engine(*SERVE, "--served-model-name=llama"), []),
        (engine(*SERVE, "--served_model_name=llama"), []),
        (engine(*SERVE, "--served-model", "llama"), []),
        (engine(*SERVE, "$(NAME)", env=[{"name": "NAME", "value": "--served-model-name=llama"}]), []),
        (engine(f"vllm serve {MODEL} --served-model-name llama", command=["sh", "-c"]), []),
        (engine(*SERVE, env=[{"name": "HF_HUB_OFFLINE", "value": "1"}]), []),
        (engine(*SERVE, env=[{"name": "TRANSFORMERS_OFFLINE", "value": "true"}]), []),
        (engine("python3", "-m", "sglang.launch_server", f"--model-path={MODEL}", image="lmsysorg/sglang"), []),
        # No option can be added, so it stays as it is.
        (engine(f"exec vllm serve {MODEL} --port 8000", command=["sh", "-c"]), None),
        (engine("-lc", f"vllm serve {MODEL}", command=["/bin/bash"]), None),
        (engine(f"--model={MODEL}", command=["/start.sh"]), None),
        (engine(f"--model={MODEL}", command=["bash", "/start.sh"]), None),
        (engine(*SERVE, "$(EXTRA)"), None),
        (engine(*SERVE, "--", "x"), None),
        (engine("--port=8000", env=[{"name": "MODEL_ID", "value": MODEL}]), None),
    ],
)  # fmt: skip
def test_name_in_metrics_stays_when_no_hub_is_asked(container: dict[str, Any], added: list[str] | None) -> None:
    pod = pod_of(container)
    changed = patched(pod)
    if added is None:
        assert changed == pod
        return
    assert changed["spec"]["containers"][0].get("args", []) == [*container.get("args", []), *added]
    assert "initContainers" in changed["spec"]
    assert patched(changed) == changed


def test_name_stays_stated_when_a_path_is_loaded() -> None:
    pod = pod_of(engine("serve", "/weights/models/a-1"), annotations={"vllm-autoscaler.io/weights": "s3://models/a"})
    assert patched(pod)["spec"]["containers"][0]["args"] == ["serve", "/weights/models/a-1"]


@pytest.mark.parametrize(("namespace", "result"), [("my-team", Result.PATCHED), ("other", Result.UNCHANGED)])
def test_private_model_is_given_to_its_namespaces_alone(namespace: str, result: Result) -> None:
    rules = SourceRules(EVERY_SOURCE.allowed, (PrivateSources.parse("hf://meta-llama/*=my-team"),))
    assert answer(review(pod_of(), namespace=namespace), read_pod_weights, FOLDER, rules)[1] is result


def test_waiting_container_has_credentials_and_bounds() -> None:
    """Then no quota refuses it, and it can fetch what the agent may not."""
    secret = {"secretKeyRef": {"name": "hub", "key": "token"}}
    environment = [
        {"name": "HUGGING_FACE_HUB_TOKEN", "valueFrom": secret},
        {"name": "HF_ENDPOINT", "value": "https://mirror.example"},
        {"name": "VLLM_API_KEY", "value": "secret"},
    ]
    amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    (waits,) = patched(pod_of(engine(env=environment, resources={"requests": amounts, "limits": amounts})))["spec"][
        "initContainers"
    ]
    assert {each["name"] for each in waits["env"]} == {"HF_ENDPOINT", "HF_TOKEN"}
    assert {"name": "HF_TOKEN", "valueFrom": secret} in waits["env"]
    assert waits["resources"] == {each: {"cpu": "8", "memory": "64Gi"} for each in ("requests", "limits")}


def test_waiting_container_has_credentials_that_others_hold() -> None:
    environment = [
        {"name": "STAGE", "value": "test"},
        {"name": "HOST", "value": "mirror.example"},
        {"name": "HF_ENDPOINT", "value": "https://$(HOST)"},
    ]
    env_from = [{"prefix": "HF_", "secretRef": {"name": "hub"}}, {"configMapRef": {"name": "site"}}]
    env_from.append({"prefix": "HF_TOKEN", "secretRef": {"name": "odd"}})
    (waits,) = patched(pod_of(engine(env=environment, envFrom=env_from)))["spec"]["initContainers"]
    assert [each["name"] for each in waits["env"]][-2:] == ["HOST", "HF_ENDPOINT"]
    token = {"secretKeyRef": {"name": "hub", "key": "TOKEN", "optional": True}}
    assert {"name": "HF_TOKEN", "valueFrom": token} in waits["env"]
    site = {"configMapKeyRef": {"name": "site", "key": "AWS_REGION", "optional": True}}
    assert {"name": "AWS_REGION", "valueFrom": site} in waits["env"]
    assert "envFrom" not in waits and "odd" not in str(waits)


@pytest.mark.parametrize("path", ["//weights", "/./weights/", "weights", "/node-weights/../weights/hub"])
def test_path_that_the_kubelet_resolves_to_ours_is_taken(path: str) -> None:
    mounted = pod_of(engine(volumeMounts=[{"name": "w", "mountPath": path}]), volumes=[{"name": "w", "emptyDir": {}}])
    assert patched(mounted) == mounted


def compile_path(pod: Pod) -> str:
    """Return the folder in which a patched pod keeps what its engine compiles; "": none."""
    changed = patched(pod, FOLDER._replace(compile_caches=True))
    assert patched(changed, FOLDER._replace(compile_caches=True)) == changed
    spec = changed["spec"]
    volumes = {each["name"]: each.get("hostPath") for each in spec.get("volumes", [])}
    found = [volumes["compile-cache"]["path"]] if volumes.get("compile-cache") else []
    if found:
        (container,) = spec["containers"]
        assert {"name": "VLLM_CACHE_ROOT", "value": "/compile-cache"} in container["env"]
        assert {"name": "compile-cache", "mountPath": "/compile-cache"} in container["volumeMounts"]
        assert all("compile-cache" not in str(each) for each in spec["initContainers"])
    return found[0] if found else ""


def test_equal_engines_of_a_namespace_share_what_they_compile() -> None:
    path = compile_path(pod_of())
    assert re.fullmatch(
        rf"{FOLDER.host_path}/compile/my-team/models--meta-llama--Llama-3.1-8B-Instruct-[0-9a-f]{{16}}", path
    )
    assert cache_of(path)
    assert compile_path(pod_of()) == path
    others = [
        engine(f"--model={MODEL}", "--max-model-len=4096"),
        engine(image="vllm/vllm-openai:v0.34.0"),
        engine(env=[{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}]),
        engine(resources={"limits": {"nvidia.com/gpu": "2"}}),
    ]
    assert len({path, *(compile_path(pod_of(each)) for each in others)}) == 1 + len(others)


@pytest.mark.parametrize(
    "pod",
    [
        pod_of(engine(securityContext={"runAsUser": 1000})),
        pod_of(engine(securityContext={"runAsNonRoot": True})),
        pod_of(engine(), securityContext={"runAsUser": 1000}),
        pod_of(engine(env=[{"name": "VLLM_CACHE_ROOT", "value": "/cache"}])),
        pod_of(engine(), volumes=[{"name": "compile-cache", "emptyDir": {}}]),
        pod_of(engine("python3", "-m", "sglang.launch_server", f"--model-path={MODEL}", image="lmsysorg/sglang")),
    ],
)
def test_engines_that_could_not_use_the_cache_get_none(pod: Pod) -> None:
    assert not compile_path(pod)
    changed = patched(pod, FOLDER._replace(compile_caches=True))
    assert [each["name"] for each in changed["spec"]["volumes"]][-2:] == ["weights", "node-weights"]


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"subResource": "status"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
    ],
)
def test_nothing_but_the_creation_of_pods_is_changed(request_: dict[str, Any]) -> None:
    text, result = answer(review(pod_of(), **request_), read_pod_weights, FOLDER)
    assert json.loads(text)["response"].keys() == {"uid", "allowed"}
    assert result is Result.UNCHANGED


def deep(levels: int) -> bytes:
    return b'{"request":{"uid":"u-1","object":' + b'{"spec":' * levels + b"1" + b"}" * levels + b"}}"


@pytest.mark.parametrize(
    "text",
    [
        b'{"request":{"uid":"u-1"',
        review(None, uid="u-1"),
        b'{"request":{"uid":"u-1","resource":7}}',
        b'{"request":{"uid":"u-1","operation":"\xff"}}',
        deep(100_000),
        review({"spec": {"containers": 7}}, uid="u-1"),
        review({"spec": {"containers": [7]}}, uid="u-1"),
        review(pod_of(volumes={"name": "v"}), uid="u-1"),
        review(pod_of(engine(env="A=B")), uid="u-1"),
        review(pod_of(affinity={"nodeAffinity": {PREFERRED: {"weight": 1}}}), uid="u-1"),
        review(pod_of(engine(env=[{"name": "A", "value": "x" * MAX_POD_BYTES}])), uid="u-1"),
        review(pod_of(engine(env=[{"name": "A", "value": "\ud800"}]), volumes=[7]), uid="u-1"),
    ],
)
def test_unreadable_reviews_allow_the_pod_without_a_patch(text: bytes) -> None:
    body, result = answer(text, read_pod_weights, FOLDER)
    assert json.loads(body)["response"] == {"uid": "u-1", "allowed": True}
    assert result is Result.UNREADABLE


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"\xff\xfe", b'{"request":{"uid":"' + b"u" * 300 + b'"'])
def test_reviews_without_a_uid_are_answered_too(text: bytes) -> None:
    body, _ = answer(text, read_pod_weights, FOLDER)
    assert json.loads(body)["response"] == {"uid": "", "allowed": True}


NAMES = st.sampled_from(["name", "value", "weights", "vllm", "env", "args", "mountPath", "hostPath", "key", "x" * 300])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["containers", "initContainers", "volumes", "affinity", "os", "nodeName"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.dictionaries(NAMES, JSON), JSON)
def test_any_pod_is_allowed(spec: dict[str, Any], fields: dict[str, Any], annotations: Any) -> None:
    pod: Pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [engine() | fields], **spec}}
    body, _ = answer(review(pod), read_pod_weights, FOLDER._replace(compile_caches=True))
    assert json.loads(body)["response"]["allowed"] is True
