import math
from typing import Any

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api.objects import Metadata, Object
from autoscaler.adapters.kubernetes.api.target_objects import CustomTarget, LeaderWorkerSet, TargetObject
from autoscaler.adapters.kubernetes.workloads.targets import (
    DEPLOYMENT,
    read_custom,
    read_leader_worker_set,
    read_target,
)
from autoscaler.adapters.kubernetes.workloads.teams import Teams
from autoscaler.catalog.scale_targets import BY_KIND


def test_group_has_the_gpus_of_leader_and_workers():
    def with_gpus(count: int) -> dict:
        return {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(count)}}}]}}

    group = {
        "metadata": {"name": "x"},
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 3, "leaderTemplate": with_gpus(1), "workerTemplate": with_gpus(8)},
        },
    }
    row = read_leader_worker_set(msgspec.json.decode(msgspec.json.encode(group), type=LeaderWorkerSet))
    assert (row.replicas, row.facts.gpus, row.facts.resource) == (2, 17.0, "nvidia.com/gpu")


@pytest.mark.parametrize(
    ("own", "of_pods", "of_namespace", "team"),
    [
        ({"team": "search"}, {"team": "of-pods"}, {"team": "of-all"}, "search"),
        ({}, {"team": "of-pods"}, {"team": "of-all"}, "of-pods"),
        ({}, {}, {"team": "of-all"}, "of-all"),
        ({"team": ""}, {"team": "of-pods"}, {}, ""),
        ({"team": ""}, {}, {"team": "of-all"}, "of-all"),
        ({"example.com/team": "other"}, {}, {"teams": "of-all"}, ""),
        ({}, {"team": "a" * 63}, None, "a" * 63),
        ({}, {"team": "a" * 64}, {"team": "of-all"}, "of-all"),
        ({}, {"team": "<b>\n"}, {"team": "<b>\n"}, ""),
        ({}, {"team": "search\n"}, {"team": ""}, ""),
    ],
)
def test_team_is_that_of_target_pods_or_namespace_in_this_order(
    own: dict, of_pods: dict, of_namespace: dict | None, team: str
):
    teams = Teams("team")
    teams.put(Object(metadata=Metadata(name="other", labels={"team": "of-others"})))
    teams.put(Object(metadata=Metadata(name="space", labels=of_namespace)))
    seen = {
        "metadata": {"name": "x", "namespace": "space", "labels": own},
        "spec": {"template": {"metadata": {"labels": of_pods}, "spec": {"containers": []}}},
    }
    target = read_target(DEPLOYMENT, msgspec.json.decode(msgspec.json.encode(seen), type=TargetObject))
    assert teams.team_of(target) == team
    of_all, differs = (of_namespace or {}).get("team") == "of-all", team in ("search", "of-pods")
    said = f"label team={team} is not that of its namespace, of-all: its GPUs are charged to {team}"
    assert teams.conflict(target) == (said if of_all and differs else "")


def test_version_of_teams_changes_when_a_team_does():
    teams = Teams("team")
    versions = []
    for labels in ({}, {"team": "a"}, {"team": "a", "other": "b"}, {"team": "c"}, {"team": "!"}):
        teams.put(Object(metadata=Metadata(name="space", labels=labels)))
        versions.append(teams.version)
    teams.remove("", "space")
    assert [*versions, teams.version] == [0, 1, 1, 2, 3, 3]


def test_gpus_of_a_group_are_unknown_when_its_workers_are():
    leader = {"spec": {"containers": [{"resources": {"limits": {"amd.com/gpu": "1"}}}]}}
    worker = {"spec": {"containers": [{"resources": {"limits": {"example.com/npu": "8"}}}]}}

    def group(size: int):
        templates = {"size": size, "leaderTemplate": leader, "workerTemplate": worker}
        body = {"metadata": {"name": "x"}, "spec": {"leaderWorkerTemplate": templates}}
        return read_leader_worker_set(msgspec.json.decode(msgspec.json.encode(body), type=LeaderWorkerSet)).facts

    assert math.isnan(group(3).gpus)
    assert "example.com/npu" in group(3).unclear
    assert (group(1).gpus, group(1).resource, group(1).unclear) == (1.0, "amd.com/gpu", "")


VOLUMES = {"volumes": [{"name": "cache", "emptyDir": {"medium": "Memory"}}]}
GROUP = ("leaderWorkerTemplate", "leaderTemplate"), ("leaderWorkerTemplate", "workerTemplate")
TEMPLATES = (
    *(("Deployment", "template"), ("StatefulSet", "template"), ("Rollout", "template")),
    *(("LeaderWorkerSet", *place) for place in GROUP),
    ("PodClique", "podSpec"),
    ("RayClusterFleet", "template", "spec", "headGroupSpec", "template"),
)


@pytest.mark.parametrize("place", TEMPLATES, ids=".".join)
def test_any_change_of_a_template_is_seen_but_no_count(place: tuple[str, ...]):
    kind, *keys = place

    def digest(replicas: int, **more: Any) -> int:
        template: dict[str, Any] = {"containers": [{"name": "main"}], **more}
        spec = template if kind == "PodClique" else {"spec": template}
        for key in reversed(keys):
            spec = {key: spec}
        text = msgspec.json.encode({"metadata": {"name": "x"}, "spec": {"replicas": replicas, **spec}})
        if kind == "LeaderWorkerSet":
            return read_leader_worker_set(msgspec.json.decode(text, type=LeaderWorkerSet)).template_digest
        if kind in ("Deployment", "StatefulSet"):
            return read_target(BY_KIND[kind], msgspec.json.decode(text, type=TargetObject)).template_digest
        return read_custom(BY_KIND[kind], msgspec.json.decode(text, type=CustomTarget)).template_digest

    assert digest(1) == digest(2)
    assert len({digest(1), digest(1, **VOLUMES), digest(1, hostNetwork=True)}) == 3


@pytest.mark.parametrize(
    ("kind", "spec", "held_back"),
    [
        ("Deployment", {"replicas": 2, "paused": True}, "is paused"),
        ("Deployment", {"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 1}}}, ""),
        ("StatefulSet", {"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 3}}}, "has a partition"),
        ("StatefulSet", {"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 3}}}, ""),  # by the new one
        ("StatefulSet", {"replicas": 2, "updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}, ""),  # likewise
        ("LeaderWorkerSet", {"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": 2}}}, "has a partition"),
        ("LeaderWorkerSet", {"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": 0}}}, ""),
    ],
)
def test_target_is_held_back_when_its_next_pod_is_a_former_one(kind: str, spec: dict[str, Any], held_back: str):
    text = msgspec.json.encode({"metadata": {"name": "x"}, "spec": spec})
    if kind == "LeaderWorkerSet":
        target = read_leader_worker_set(msgspec.json.decode(text, type=LeaderWorkerSet))
    else:
        target = read_target(BY_KIND[kind], msgspec.json.decode(text, type=TargetObject))
    assert target.held_back.startswith(held_back) and bool(target.held_back) == bool(held_back)


def test_writer_is_the_field_manager_of_spec_replicas():
    fields = [
        {"manager": "controller", "fieldsV1": {"f:status": {"f:replicas": {}}}},
        {"manager": "kubectl\n-scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
    text = msgspec.json.encode({"metadata": {"name": "x", "managedFields": fields}, "spec": {"replicas": 2}})
    assert read_target(DEPLOYMENT, msgspec.json.decode(text, type=TargetObject)).writer.manager == "kubectl-scale"


def endpoint(ours: dict[str, str], usual: dict[str, str], of_template: dict[str, str]) -> tuple[int, str, str]:
    container = {"name": "vllm", "args": ["--port", "7000"]}
    target = {
        "metadata": {"name": "x", "annotations": {f"vllm-autoscaler.io/{name}": text for name, text in ours.items()}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    target["metadata"]["annotations"] |= {f"prometheus.io/{name}": text for name, text in usual.items()}
    template = {f"prometheus.io/{name}": text for name, text in of_template.items()}
    target["spec"]["template"]["metadata"] = {"annotations": template}
    workload = read_target(DEPLOYMENT, msgspec.json.decode(msgspec.json.encode(target), type=TargetObject)).workload
    return workload.metrics_port, workload.metrics_scheme, workload.metrics_path


def test_own_annotations_override_usual_ones():
    assert endpoint({}, {}, {}) == (7000, "http", "")
    usual = {"port": "8080", "scheme": "https", "path": "/m"}
    assert endpoint({}, {}, usual) == endpoint({}, usual, {}) == (8080, "https", "/m")
    assert endpoint({}, {"port": "1"}, {"port": "2"}) == (2, "http", "")
    assert endpoint({"metrics-port": "9000", "metrics-path": "/n"}, {}, usual) == (9000, "https", "/n")


def test_usual_annotations_are_ignored_when_invalid():
    assert endpoint({}, {}, {"port": "http", "scheme": "gopher", "path": "../m"}) == (7000, "http", "")


def test_group_has_the_metrics_endpoint_of_its_leader():
    def templates(port: str) -> dict:
        return {"metadata": {"annotations": {"prometheus.io/port": port}}}

    parts = {"leaderTemplate": templates("9001"), "workerTemplate": templates("9002")}

    def port(*names: str) -> int:
        template = {"size": 2, **{name: parts[name] for name in names}}
        group = {"metadata": {"name": "x"}, "spec": {"leaderWorkerTemplate": template}}
        return read_leader_worker_set(
            msgspec.json.decode(msgspec.json.encode(group), type=LeaderWorkerSet)
        ).workload.metrics_port

    assert (port("leaderTemplate", "workerTemplate"), port("workerTemplate")) == (9001, 9002)


def test_engine_annotation_overrides_the_program():
    def workload(*args: str, **ours: str) -> tuple[str, int]:
        annotations = {f"vllm-autoscaler.io/{name}": text for name, text in ours.items()}
        spec = {"template": {"spec": {"containers": [{"name": "main", "args": list(args)}]}}}
        body = {"metadata": {"name": "x", "annotations": annotations}, "spec": spec}
        seen = read_target(DEPLOYMENT, msgspec.json.decode(msgspec.json.encode(body), type=TargetObject)).workload
        return seen.engine, seen.metrics_port

    assert workload() == ("vllm", 8000)
    assert workload(engine="sglang") == ("sglang", 30000)
    assert workload("sglang", "serve", "--model-path", "m") == ("sglang", 30000)
    assert workload("sglang", "serve", "--port", "9000", engine="vllm") == ("vllm", 9000)
    assert workload("sglang", "serve", engine="triton") == ("triton", 8002)


def test_workload_names_its_source_before_template_and_engine():
    def weights(own: str, of_template: str) -> str:
        name = "vllm-autoscaler.io/weights"
        template = {
            "metadata": {"annotations": {name: of_template}},
            "spec": {"containers": [{"args": ["vllm", "serve", "org/engine"]}]},
        }
        target = {"metadata": {"name": "x", "annotations": {name: own}}, "spec": {"template": template}}
        return read_target(
            DEPLOYMENT, msgspec.json.decode(msgspec.json.encode(target), type=TargetObject)
        ).workload.weights

    assert weights("hf://org/own@v1", "hf://org/template@v1") == "hf://org/own@v1"
    assert weights("", "hf://org/template@v1") == "hf://org/template@v1"
    assert weights("invalid", "invalid") == "hf://org/engine@main"
