"""The model names that an engine reports, from its command line."""

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api.pod_objects import PodSpec
from autoscaler.adapters.kubernetes.pods.template import COMMAND_LIMIT, served_names
from autoscaler.core.model.fleet import ServedNames

UNKNOWN = ServedNames()


def names(*containers: dict, **spec: object) -> ServedNames:
    body = {"containers": [{"name": f"c{number}"} | each for number, each in enumerate(containers)], **spec}
    return served_names(msgspec.json.decode(msgspec.json.encode(body), type=PodSpec))


def of(*args: str, **container: object) -> ServedNames:
    return names({"args": list(args), **container})


@pytest.mark.parametrize(
    ("args", "known"),
    [
        (["vllm", "serve", "/models/x", "--served-model-name", "x"], ("x",)),
        (["vllm", "serve", "org/m", "--served-model-name", "a", "b", "--port", "8000"], ("a", "b")),
        (["vllm", "serve", "org/m", "--served_model_name=a"], ("a",)),
        (["--model", "org/m", "--served-model-name", "a"], ("a",)),
        (["sh", "-c", "exec vllm serve org/m --served-model-name a"], ("a",)),
        (["sh", "-c", "vllm serve org/a --port 1 & vllm serve org/b --port 2; wait"], ("org/a", "org/b")),
        (["-m", "sglang.launch_server", "--model-path", "/models/x"], ("/models/x",)),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model=org/m"], ("org/m",)),
        (["/usr/bin/vllm", "serve", "org/m"], ("org/m",)),
    ],
)
def test_names_are_the_served_names_or_the_loaded_model(args: list[str], known: tuple[str, ...]):
    assert of(*args).names == known


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--port", "8000"],
        ["vllm", "serve", "$(MODEL)"],
        ["sh", "-c", "vllm serve ${MODEL:-org/m}"],
        ["sh", "-c", "MODEL=org/m; vllm serve $MODEL"],
        ["sh", "-c", "vllm serve org/m $EXTRA"],
        ["sh", "-c", "vllm serve org/m --port $(cat /port) --served-model-name a"],
        ["sh", "-c", "vllm serve org/m --port `cat /port`"],
        ["sh", "-c", "vllm 'unbalanced"],
        ["vllm", "serve", "--port", "8000", "org/m"],
        ["vllm", "serve", "org/m", "--config", "/etc/config.yaml"],
        ["vllm", "serve", "org/m", "--served-model", "a"],
        ["vllm", "serve", "org/m", "--port 8000 --served-model-name a"],
        ["vllm", "serve", "org/m", "--enable-lora"],
        ["vllm", "serve", "org/m", "--lora-modules", "sql=/adapters/sql"],
        ["vllm", "serve", "org/m-speculator.eagle3"],
        ["--model_name=llama3", "--model_id=org/m"],
        ["serve", "run", "app:build"],
        ["/start.sh", "--model", "org/m"],
        ["--model", "org/m"],
        ["serve", "org/m"],
        ["vllm", "serve", "org/m", *["--flag"] * 600],
    ],
)
def test_names_are_unknown_when_another_source_may_set_them(args: list[str]):
    assert of(*args).names == ()


def test_stated_variables_are_substituted():
    env = [{"name": "MODEL", "value": "org/m"}, {"name": "NAME", "value": "a"}]
    assert of("vllm", "serve", "$(MODEL)", "--served-model-name", "$(NAME)", env=env).names == ("a",)
    secret = [{"name": "MODEL", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    assert of("vllm", "serve", "$(MODEL)", env=secret) == UNKNOWN


def test_names_of_all_containers_with_a_model_count():
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    engine = {"args": ["vllm", "serve", "org/m"], **gpu}
    embedder = {"args": ["vllm", "serve", "org/e"]}
    assert names(engine, {"args": ["proxy", "--port", "1"]}).names == ("org/m",)
    assert names(engine, embedder).names == ("org/m", "org/e")
    assert names(engine, initContainers=[embedder | {"name": "s", "restartPolicy": "Always"}]).names == (
        "org/m",
        "org/e",
    )
    assert names(engine, {"args": ["vllm", "serve", "$(M)"]}) == UNKNOWN
    assert names({"args": ["--port", "8000"], **gpu}, embedder) == UNKNOWN


def test_long_command_line_is_not_read():
    assert of("vllm", "serve", "org/m", "x" * COMMAND_LIMIT) == UNKNOWN


@pytest.mark.parametrize(
    ("served", "reported", "matches"),
    [
        (ServedNames(("x",)), "x", True),
        (ServedNames(("x",)), "X", True),
        (ServedNames(("x",)), "/models/x/", True),
        (ServedNames(("/models/x",)), "x", True),
        (ServedNames(("a", "b")), "b", True),
        (ServedNames(("x",)), "", True),
        (UNKNOWN, "y", True),
        (ServedNames(("org/m",), or_path=True), "/root/hub/models--org--m/snapshots/0123", True),
        (ServedNames(("x",)), "y", False),
        (ServedNames(("/models/x",)), "/models/y", False),
        (ServedNames(("org/m",), or_path=True), "org/n", False),
    ],
)
def test_reported_name_matches_the_served_names(served: ServedNames, reported: str, matches: bool):
    assert served.include(reported) is matches
