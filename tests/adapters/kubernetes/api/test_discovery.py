"""Discovery of kinds: versions, missing groups, and servers that answer in part."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api.client import ApiError
from autoscaler.adapters.kubernetes.api.discovery import ServedKind, discover


class Answers:
    """Stands for a connection: answers paths with documents, or with the status of a refusal."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def request(self, method: str, path: str) -> bytes:
        self.asked.append(path)
        answer = self.answers.get(path, 404)
        if isinstance(answer, int):
            raise ApiError(f"{method} {path}", answer, "refused")
        return answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


def groups(**versions: list[str]) -> dict[str, Any]:
    """Return the groups of a server; the first version of each is preferred, "_" stands for "."."""
    return {
        "groups": [
            {
                "name": name.replace("_", "."),
                "versions": [{"version": version} for version in sorted(listed)],
                "preferredVersion": {"version": listed[0]},
            }
            for name, listed in versions.items()
        ]
    }


def resources(*names: str, namespaced: bool = True) -> dict[str, Any]:
    return {"resources": [{"name": name, "kind": "Thing", "namespaced": namespaced} for name in names]}


WANTED = {"things.example.com": "v1"}


async def find(answers: Mapping[str, Any], wanted: Mapping[str, str] = WANTED) -> ServedKind | None:
    found = await discover(Answers(answers), wanted)  # type: ignore[arg-type]
    return found["things.example.com"]


@pytest.mark.parametrize(
    ("served", "wanted", "version"),
    [(["v1"], "v1", "v1"), (["v2", "v1"], "v1", "v1"), (["v2", "v3"], "v1", "v2"), (["v2", "v3"], "", "v2")],
)
async def test_version_is_the_wanted_one_else_the_preferred(served: list[str], wanted: str, version: str):
    answers = {f"/apis/example.com/{each}": resources("things", "things/scale") for each in served}
    found = await find({"/apis": groups(example_com=served), **answers}, {"things.example.com": wanted})
    assert found == ServedKind("things.example.com", "Thing", version, scalable=True)


async def test_kind_is_looked_for_in_every_version():
    answers = {"/apis": groups(example_com=["v2", "v1"]), "/apis/example.com/v1": resources("others")}
    found = await find({**answers, "/apis/example.com/v2": resources("things", "others/scale")})
    assert found == ServedKind("things.example.com", "Thing", "v2", scalable=False)


@pytest.mark.parametrize(
    "answers",
    [
        {"/apis": groups(other_com=["v1"])},
        {"/apis": groups(example_com=["v1"]), "/apis/example.com/v1": resources("others")},
        {"/apis": groups(example_com=["v1"]), "/apis/example.com/v1": resources("things", namespaced=False)},
        {"/apis": groups(example_com=["v1"])},
    ],
)
async def test_kind_that_is_not_served_is_none(answers: Mapping[str, Any]):
    assert await find(answers) is None


async def test_group_that_does_not_answer_is_left_out():
    answers = Answers({"/apis": groups(example_com=["v1"], fine_com=["v1"]), "/apis/example.com/v1": 503})
    answers.answers |= {"/apis/fine.com/v1": resources("jobs", "jobs/scale")}  # type: ignore[operator]
    found = await discover(answers, {**WANTED, "jobs.fine.com": "v1"})  # type: ignore[arg-type]
    assert found == {"jobs.fine.com": ServedKind("jobs.fine.com", "Thing", "v1", scalable=True)}


@pytest.mark.parametrize("answer", [403, 500, b"<html>", {"groups": 5}, {}])
async def test_server_without_an_answer_is_an_error(answer: object):
    with pytest.raises(ApiError):
        await find({"/apis": answer})


async def test_each_version_is_read_once():
    answers = Answers({"/apis": groups(example_com=["v1"]), "/apis/example.com/v1": resources("things")})
    await discover(answers, {**WANTED, "others.example.com": "v1", "more.example.com": "v1"})  # type: ignore[arg-type]
    assert answers.asked == ["/apis", "/apis/example.com/v1"]
