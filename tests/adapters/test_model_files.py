"""Indexes of models, from directories and from a hub, as hostile as they come."""

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from autoscaler.adapters.clock import SystemClock
from autoscaler.adapters.model_files import MAX_BYTES, ModelSizes, in_directory, on_hub
from autoscaler.config.model_memory import UNKNOWN, Range
from autoscaler.config.weights.source import parse
from tests.harness.process import eventually

CONFIG, INDEX = "config.json", "model.safetensors.index.json"


def write(folder: Path, size: object = 16_000_000_000, config: object = None) -> Path:
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps(config or {"num_hidden_layers": 32}))
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}}))
    return folder


@pytest.mark.parametrize("place", ["org/name", "name", "models--org--name/snapshots/abc"])
def test_a_model_is_found_by_its_name(tmp_path, place):
    write(tmp_path / place)
    found = in_directory(tmp_path, "org/name")
    assert found is not None
    assert (found.weights, found.config) == (Range(16e9, 16e9), {"num_hidden_layers": 32})


def test_a_path_in_the_pod_is_found_by_its_last_part(tmp_path):
    write(tmp_path / "llama")
    found = in_directory(tmp_path, "/mnt/models/llama")
    assert found is not None
    assert found.weights == Range(16e9, 16e9)
    assert in_directory(tmp_path, "/mnt/models/other") is None


@pytest.mark.parametrize("name", ["../name", "org/../../name", "..", ".", "", "/"])
def test_no_name_leads_out_of_the_directory(tmp_path, name):
    write(tmp_path / "name")
    (tmp_path / "models").mkdir()
    assert in_directory(tmp_path / "models", name) is None


@pytest.mark.parametrize("file", [CONFIG, INDEX])
def test_a_link_out_of_the_directory_is_not_read(tmp_path, file):
    secret = write(tmp_path / "secret") / file
    folder = write(tmp_path / "models" / "name")
    (folder / file).unlink()
    (folder / file).symlink_to(secret)
    found = in_directory(tmp_path / "models", "name")
    assert found is not None
    assert found.weights == UNKNOWN
    assert "leads out of the directory" in found.problem


def test_a_folder_that_leads_out_is_not_read(tmp_path):
    write(tmp_path / "secret")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "name").symlink_to(tmp_path / "secret")
    found = in_directory(tmp_path / "models", "name")
    assert found is not None
    assert found.weights == UNKNOWN


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"null", b"[1]", b'{"metadata": 7}'])
def test_a_broken_index_is_unknown(tmp_path, content):
    (write(tmp_path / "name") / INDEX).write_bytes(content)
    found = in_directory(tmp_path, "name")
    assert found is not None
    assert found.weights == UNKNOWN


@pytest.mark.parametrize("size", [-1, 0, 10**300, "1", None, True])
def test_an_impossible_size_is_unknown(tmp_path, size):
    write(tmp_path / "name", size)
    found = in_directory(tmp_path, "name")
    assert found is not None
    assert found.weights == UNKNOWN


def test_a_huge_file_is_not_read_whole(tmp_path):
    folder = write(tmp_path / "name")
    os.truncate(folder / CONFIG, MAX_BYTES[CONFIG] + 1)
    found = in_directory(tmp_path, "name")
    assert found is not None
    assert "config.json has more than" in found.problem


def test_a_pipe_is_not_waited_for(tmp_path):
    folder = write(tmp_path / "name")
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)
    found = in_directory(tmp_path, "name")
    assert found is not None
    assert "is not a file" in found.problem


def test_without_an_index_the_sizes_of_the_files_count(tmp_path):
    folder = write(tmp_path / "name")
    (folder / INDEX).unlink()
    (folder / "model.safetensors").touch()
    os.truncate(folder / "model.safetensors", 3_000_000)
    found = in_directory(tmp_path, "name")
    assert found is not None
    assert found.weights == Range(3e6, 3e6)


Serve = Callable[[dict[str, tuple[int, bytes]]], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers = []

    async def start(files: dict[str, tuple[int, bytes]]) -> str:
        async def answer(request: web.Request) -> web.Response:
            status, body = files.get(request.path, (404, b""))
            return web.Response(status=status, body=body)

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return str(server.make_url("")).rstrip("/")

    yield start
    for server in servers:
        await server.close()


FILES = "/org/name/resolve/main"


async def test_a_hub_states_size_and_configuration(serve):
    index = json.dumps({"metadata": {"total_size": 16_000_000_000}}).encode()
    url = await serve({f"{FILES}/{CONFIG}": (200, b'{"num_hidden_layers": 2}'), f"{FILES}/{INDEX}": (200, index)})
    found = await on_hub("org/name", url)
    assert (found.weights, found.config) == (Range(16e9, 16e9), {"num_hidden_layers": 2})


async def test_a_model_in_one_file_has_the_size_of_that_file(serve):
    tree = [{"path": "model.safetensors", "size": 1_200_000_000}, {"path": 7}, 8, {"path": "README.md", "size": -1}]
    url = await serve({"/api/models/org/name/tree/main": (200, json.dumps(tree).encode())})
    assert (await on_hub("org/name", url)).weights == Range(1.2e9, 1.2e9)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((401, b""), "HTTP 401"),
        ((503, b""), "HTTP 503"),
        ((200, b"<html>"), "not valid JSON"),
        ((200, b"7" * (MAX_BYTES[CONFIG] + 1)), "more than"),
    ],
)
async def test_a_hub_that_does_not_answer_is_named(serve, answer, problem):
    found = await on_hub("org/name", await serve({f"{FILES}/{CONFIG}": answer}))
    assert found.weights == UNKNOWN
    assert problem in found.problem


@pytest.mark.parametrize("name", ["../etc/passwd", "a/b/c", "a b", "http://x/y", "a/..", "", "x" * 300])
async def test_only_names_of_models_are_asked_for(name):
    found = await on_hub(name, "http://127.0.0.1:1")
    assert "is no name of a model" in found.problem
    assert math.isinf(found.weights.most)


async def test_size_of_a_revision_is_looked_up_once_in_the_background(serve):
    index = json.dumps({"metadata": {"total_size": 16_000_000_000}}).encode()
    url = await serve({f"/org/name/resolve/v1/{INDEX}": (200, index), f"/org/gated/resolve/main/{INDEX}": (401, b"")})
    sizes = ModelSizes(SystemClock(), url)
    known, gated, bucket = (parse(text) for text in ("hf://org/name@v1", "hf://org/gated@main", "s3://bucket/m"))
    assert all(math.isnan(sizes.size_bytes(each)) for each in (gated, known, bucket))
    task = asyncio.create_task(sizes.run())
    try:
        await eventually(lambda: _is(sizes.size_bytes(known) == 16e9), "the size")
    finally:
        task.cancel()
    assert sizes.version == 1
    assert math.isnan(sizes.size_bytes(gated)) and math.isnan(sizes.size_bytes(bucket))


async def _is(value: bool) -> bool:
    return value
