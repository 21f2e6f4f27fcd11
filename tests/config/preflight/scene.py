"""Good manifests of which tests change one place."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import yaml

from autoscaler.config.policy.parse import PolicyBook, read_policies
from autoscaler.config.preflight.facts import QueryFacts
from autoscaler.config.preflight.objects import Manifests, read_object
from autoscaler.config.preflight.run import PreflightOutcome, run
from autoscaler.config.yaml import read_documents

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the one in C is some 20 times faster
Documents = list[dict[str, Any]]
KNOWN = read_policies(())
BOOK = PolicyBook(KNOWN.policies, "interactive", KNOWN.limits)
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

GOOD: Documents = list(
    yaml.safe_load_all(f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat, namespace: web, annotations: {{vllm-autoscaler.io/policy: realtime}}}}
spec:
  strategy: {{type: RollingUpdate, rollingUpdate: {{maxSurge: 0, maxUnavailable: 1}}}}
  selector: {{matchLabels: {{app: chat}}}}
  template:
    metadata:
      labels: {{app: chat}}
      annotations: {{karpenter.sh/do-not-disrupt: "true"}}
    spec:
      terminationGracePeriodSeconds: 110
      nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L40S}}
      priorityClassName: urgent
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          args: [--model, {LLAMA}, --served-model-name, chat, --max-model-len, "16384", --max-num-seqs, "64",
            --gpu-memory-utilization, "0.90", --tensor-parallel-size, "2", --dtype, bfloat16, --shutdown-timeout, "80"]
          ports: [{{name: http, containerPort: 8000}}]
          startupProbe: {{httpGet: {{path: /health, port: http}}, periodSeconds: 5, failureThreshold: 120}}
          livenessProbe: {{httpGet: {{path: /health, port: http}}, periodSeconds: 10, failureThreshold: 3}}
          readinessProbe: {{httpGet: {{path: /health, port: http}}}}
          lifecycle: {{preStop: {{sleep: {{seconds: 10}}}}}}
          resources: {{requests: {{cpu: "4", memory: 32Gi}}, limits: {{nvidia.com/gpu: "2", memory: 32Gi}}}}
          volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
      volumes: [{{name: shm, emptyDir: {{medium: Memory}}}}]
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{name: chat, namespace: web}}
spec:
  scaleTargetRef: {{name: chat}}
  minReplicaCount: 2
  maxReplicaCount: 4
  triggers:
    - type: prometheus
      metadata:
        serverAddress: http://prometheus:9090
        query: sum(vllm:num_requests_running{{namespace="web",model_name="chat"}})
        threshold: "40"
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: chat, namespace: web}}
spec: {{maxUnavailable: 1, selector: {{matchLabels: {{app: chat}}}}}}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {{name: chat, namespace: web}}
spec:
  selector: {{matchLabels: {{app: chat}}}}
  podMetricsEndpoints:
    - port: http
      interval: 15s
      scrapeTimeout: 10s
      metricRelabelings: [{{action: drop, sourceLabels: [__name__], regex: "python_.*"}}]
---
apiVersion: v1
kind: Node
metadata:
  name: gpu-1
  labels:
    nvidia.com/gpu.product: NVIDIA-L40S
    nvidia.com/gpu.memory: "46068"
    nvidia.com/gpu.compute.major: "8"
    nvidia.com/gpu.compute.minor: "9"
status: {{allocatable: {{nvidia.com/gpu: "8", cpu: "64", memory: 500Gi}}}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {{name: gpus, namespace: web}}
spec: {{hard: {{requests.nvidia.com/gpu: "8", requests.memory: 128Gi}}}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: urgent}}
value: 1000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: patient}}
value: -10
preemptionPolicy: Never
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: nightly, namespace: jobs, annotations: {{vllm-autoscaler.io/policy: batch}}}}
spec:
  replicas: 1
  strategy: {{type: Recreate}}
  selector: {{matchLabels: {{app: nightly}}}}
  template:
    metadata: {{labels: {{app: nightly}}}}
    spec:
      terminationGracePeriodSeconds: 60
      priorityClassName: patient
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.32.0
          args: [--model, {LLAMA}, --max-model-len, "8192", --max-num-seqs, "64", --shutdown-timeout, "45"]
          startupProbe: {{httpGet: {{path: /health, port: 8000}}, failureThreshold: 60}}
          resources: {{limits: {{nvidia.com/gpu: "1"}}}}
""")
)
CHAT, SCALER, BUDGET, MONITOR, NODE, QUOTA, URGENT, PATIENT, NIGHTLY = range(9)
POD = ("spec", "template", "spec")
ENGINE = (*POD, "containers", 0)
QUERY = ("spec", "triggers", 0, "metadata", "query")
GONE = object()  # in place of a value: the key is removed


def changed(*changes: tuple[int, tuple[str | int, ...], object], more: Documents | None = None) -> Documents:
    """Return the good manifests with other values at some places, and with more documents."""
    documents = copy.deepcopy(GOOD)
    for index, place, value in changes:
        put(documents[index], place, value)
    return documents + copy.deepcopy(more or [])


def put(document: Any, place: Sequence[str | int], value: object) -> None:
    """Set the value at a place; missing mappings on the way are made."""
    for key in place[:-1]:
        document = document.setdefault(key, {}) if isinstance(document, dict) else document[key]
    if value is GONE:
        del document[place[-1]]
    elif isinstance(document, list) and place[-1] == len(document):
        document.append(value)
    else:
        document[place[-1]] = value


def options(*words: str) -> tuple[int, tuple[str | int, ...], object]:
    """Return a change that adds options to the engine; the last of equal ones counts."""
    return CHAT, (*ENGINE, "args"), [*GOOD[CHAT]["spec"]["template"]["spec"]["containers"][0]["args"], *words]


def checked(documents: Documents, facts: QueryFacts | None = None) -> PreflightOutcome:
    read, problems = read_documents("x.yaml", yaml.dump_all(documents, Dumper=DUMPER))
    assert not problems
    things = [thing for document in read if (thing := read_object(document)) is not None]
    return run(Manifests.of(things), facts or QueryFacts(server=False), BOOK)


def ids(documents: Documents) -> set[str]:
    return {each.id for each in checked(documents).findings if each.severity != "note"}
