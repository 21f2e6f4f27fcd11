"""Measure `weights pull` compared with the best single tools, and agents that share models: over loopback, in one run.

    python bench/micro/weights.py [--bytes 4e9] [--shards 8] [--rounds 3] [--load] [--folder DIRECTORY] [--json]
    python bench/micro/weights.py --store [the same]
    python bench/micro/weights.py --agents 10 [--store] [--models 1] [--bytes 2e8] [--alone] [the same]

A hub on loopback serves a model from the page cache, with `sendfile`. Each round fetches it whole with each tool, in
turn, into an empty folder on the disk of `--folder`:

* `pull`: `weights pull`, which verifies every checksum and makes the files last on the disk (`fsync`).
* `curl`: four processes at a time, one file each. It verifies nothing, and leaves the files to the kernel.
* `hf`: `hf download`, which verifies sizes, and leaves the files to the kernel.

With `--store` the model is in a bucket of versitygw, a real S3 server, and s5cmd (tools/s5cmd.sh) fetches it beside
`pull`. Neither compares checksums, since the bucket states none.

Figures are GB/s of the fastest and the median round, CPU seconds of the tool for each gigabyte, and `ratio`: the
median rate of `pull` divided by that of the best of the others. The hub takes CPU from all tools alike.
`lasting_ratio` is the same with the time until the files last on the disk: the others end while up to 20 % of the
memory waits to be written.

`--agents` starts this many `weights agent` processes at once, on folders of their own. Each has the same wishes.
`copies` is the bytes that the hub, or with `--store` the bucket, sent divided by those of all models. `wall_s` is the
time from the start of the processes until all are ready. `cpu_s_per_gb` is the CPU seconds of all agents for each
gigabyte that arrived. `most_mib` is the largest memory (RSS) that an agent took, and has to be below the request of
its manifest. With `--alone` agents share nothing.

With `--load` as many processes as there are cores compute meanwhile, with the lowest priority (`nice`).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import obstore
from obstore.store import S3Store

from bench.micro.result import machine, show
from tests.harness.process import free_port, where
from tests.harness.s3 import ACCESS_KEY, REGION, SECRET_KEY, s3

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BLOCK = 1 << 20
CURLS = 4
TARGET_RATIO = 0.9
WEIGHTS = [sys.executable, "-c", "from autoscaler.cli.main import main; main()", "weights"]
PULL, AGENT = [*WEIGHTS, "pull"], [*WEIGHTS, "agent"]


class Shard(NamedTuple):
    path: Path
    size: int
    sha256: str


class Run(NamedTuple):
    """One transfer by one tool."""

    wall_s: float
    cpu_s: float
    lasting_s: float = 0.0  # until the files last on the disk
    most_mib: float = 0.0  # memory of the largest process


def make_shards(folder: Path, total: int, count: int) -> list[Shard]:
    """Write files of safetensors with random content, and return them with their checksums."""
    folder.mkdir(parents=True)
    shards, block = [], os.urandom(BLOCK)
    for number in range(count):
        path = folder / f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        tensor = total // count // BLOCK * BLOCK
        header = json.dumps({"weight": {"dtype": "U8", "shape": [tensor], "data_offsets": [0, tensor]}}).encode()
        digest = hashlib.sha256()
        with path.open("wb") as opened:
            for piece in (len(header).to_bytes(8, "little"), header):
                digest.update(piece)
                opened.write(piece)
            for at in range(tensor // BLOCK):
                piece = b"%16d" % (number << 32 | at) + block[16:]
                digest.update(piece)
                opened.write(piece)
        shards.append(Shard(path, path.stat().st_size, digest.hexdigest()))
    return shards


def handler(shards: Sequence[Shard], sent: Counter[str]) -> type[BaseHTTPRequestHandler]:
    """Return a hub whose models all have the same files, as `hf download` and `weights pull` read it.

    sent: counts bytes by model.
    """
    files = {shard.path.name: shard for shard in shards}
    siblings, tree = [], []
    for name, shard in files.items():
        oid, lfs = shard.sha256[:40], {"size": shard.size, "pointerSize": 134}
        siblings.append({"rfilename": name, "size": shard.size, "blobId": oid, "lfs": {"sha256": shard.sha256, **lfs}})
        entry = {"type": "file", "path": name, "size": shard.size, "oid": oid}
        tree.append({**entry, "lfs": {"oid": shard.sha256, **lfs}})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            name = path.rpartition("/")[2]
            if path.startswith("/api/models/org/model"):
                model = "/".join(path.split("/")[3:5])
                info = {"_id": "1", "id": model, "sha": COMMIT, "siblings": siblings}
                body = json.dumps(tree if "/tree/" in path else info).encode()
                self.answer(200, len(body), {"Content-Type": "application/json"})
                self.wfile.write(body)
            elif name in files and "/resolve/" in path:
                self.send_file(files[name])
            else:
                self.answer(404, 0, {})

        def send_file(self, shard: Shard) -> None:
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            at, end = int(first), min(int(last or shard.size), shard.size - 1) + 1
            names = {"ETag": f'"{shard.sha256}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if "Range" in self.headers:
                self.answer(206, end - at, {**names, "Content-Range": f"bytes {at}-{end - 1}/{shard.size}"})
            else:
                self.answer(200, end - at, names)
            if self.command == "HEAD":
                return
            try:
                sent[self.path.split("/")[2]] += end - at
                with shard.path.open("rb") as opened:
                    while at < end:
                        at += os.sendfile(self.connection.fileno(), opened.fileno(), at, end - at)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def answer(self, status: int, length: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(length), **headers}.items():
                self.send_header(key, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def measure(commands: Sequence[Sequence[str | Path]], environment: dict[str, str], at_once: int = 1) -> Run:
    """Run commands, this many at a time, and return how long they took."""
    os.sync()
    before, begin_s = os.times(), time.perf_counter()
    waiting, running = [list(map(str, command)) for command in commands], []
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(subprocess.Popen(waiting.pop(0), env=environment, stdout=subprocess.DEVNULL))
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        for process in [process for process in running if process.poll() is not None]:
            running.remove(process)
            if process.returncode:
                raise SystemExit(f"{process.args} ended with {process.returncode}")
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(time.perf_counter() - begin_s, cpu_s)


def hub_tools(url: str, shards: Sequence[Shard], target: Path) -> dict[str, Callable[[], Run]]:
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment |= {"PYTHONPATH": str(ROOT), "HF_HOME": str(target / "hf")}
    base = f"{url}/org/model/resolve/{COMMIT}"
    curls = [["curl", "-sf", "-o", target / each.path.name, f"{base}/{each.path.name}"] for each in shards]
    hf = [sys.executable, "-c", "from huggingface_hub.cli.hf import main; main()", "download", "org/model", "--quiet"]
    return {
        "pull": lambda: measure([[*PULL, "hf://org/model@main", "--root", target]], environment),
        "curl": lambda: measure(curls, environment, CURLS),
        "hf": lambda: measure([[*hf, "--revision", COMMIT]], environment),
    }


@contextmanager
def bucket(shards: Sequence[Shard], folder: Path, models: int) -> Iterator[dict[str, str]]:
    """Serve the files as objects of a bucket, and give the environment in which tools reach it."""
    url, server = s3(folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
    environment |= {
        "MALLOC_ARENA_MAX": "2",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
    }
    (folder / "buckets" / "models").mkdir()
    asyncio.run(server.start())
    store = S3Store(
        "models",
        client_options={"allow_http": True},
        endpoint=url,
        region=REGION,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
    )
    try:
        for number in range(models):
            for shard in shards:
                obstore.put(store, f"model-{number}/{shard.path.name}", shard.path)
        yield environment
    finally:
        asyncio.run(server.stop())


def store_tools(environment: dict[str, str], target: Path) -> dict[str, Callable[[], Run]]:
    s5cmd = [where("s5cmd.sh"), "--endpoint-url", environment["AWS_ENDPOINT_URL"], "--log", "error"]
    return {
        "pull": lambda: measure([[*PULL, "s3://models/model-0", "--root", target]], environment),
        "s5cmd": lambda: measure([[*s5cmd, "cp", "s3://models/model-0/*", f"{target}/"]], environment),
    }


@contextmanager
def counting(url: str, sent: Counter[str]) -> Iterator[str]:
    """Stand between agents and a server, and count the bytes that the server sends."""
    port = urlsplit(url).port

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 20):
                sent[name] += len(piece)
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, inner_writer, "asked"), copy(inner_reader, writer, "sent"))

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(connect, "127.0.0.1", 0), loop).result()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)


@contextmanager
def load() -> Iterator[None]:
    """Compute on all cores, with the lowest priority."""
    command = ["nice", "-n", "19", sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def share(sources: Sequence[str], environment: dict[str, str], target: Path, agents: int, alone: bool) -> Run:
    """Start agents that wish the same models, and wait until all have all."""
    target.mkdir(parents=True)
    wishes, token = target / "wishes.yaml", target / "token"
    wishes.write_text("".join(f"- {source}\n" for source in sources))
    token.write_text("a token of this benchmark")
    ports = [free_port() for _ in range(agents)]
    shared = [word for port in ports for word in ("--peer", f"127.0.0.1:{port}")]
    roots = [target / str(number) for number in range(agents)]
    for root in roots:
        root.mkdir()
    before, begin_s = os.times(), time.perf_counter()
    processes = []
    for root, port in zip(roots, ports, strict=True):
        command = [*AGENT, "--root", root, "--wishes", wishes, "--http-host", "127.0.0.1"]
        command += [
            "--http-port",
            "0",
            "--log-level",
            "error",
            "--allow-source",
            "hf://**",
            "--allow-source",
            "s3://**",
        ]
        command += ["--private-source", "s3://**=*"]
        if not alone:
            command += ["--peer-host", "127.0.0.1", "--peer-port", str(port), "--peer-token-file", token, *shared]
        processes.append(subprocess.Popen(list(map(str, command)), env=environment))
    try:
        while not all(len(list(root.glob(".vllm-autoscaler/records/*.json"))) == len(sources) for root in roots):
            if any(process.poll() is not None for process in processes):
                raise SystemExit("an agent ended")
            time.sleep(0.1)
        wall_s = time.perf_counter() - begin_s
        most_mib = max(map(most_memory, processes))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(wall_s, cpu_s, most_mib=most_mib)


def most_memory(process: subprocess.Popen[bytes]) -> float:
    """Return the most memory that a process has taken, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def run_rounds(tools: dict[str, Callable[[], Run]], target: Path, rounds: int) -> dict[str, list[Run]]:
    """Run each tool in each round, in another order each time."""
    runs: dict[str, list[Run]] = {name: [] for name in tools}
    names = list(tools)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            run, begin_s = tools[name](), time.perf_counter()
            for path in target.rglob("*.safetensors"):
                with path.open("rb") as opened:
                    os.fsync(opened.fileno())
            runs[name].append(run := run._replace(lasting_s=run.wall_s + time.perf_counter() - begin_s))
            text = f"  {name}: {run.wall_s:.2f} s, {run.lasting_s:.2f} s until it lasts, {run.cpu_s:.2f} CPU s"
            print(text, file=sys.stderr)
    return runs


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=0, help="of a model; default: 4e9, with --agents 2e8")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; default: the temporary one")
    parser.add_argument("--store", action="store_true", help="fetch from a real S3 server")
    parser.add_argument("--agents", type=int, default=0, help="that fetch the same models at once")
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--load", action="store_true", help="compute on all cores meanwhile")
    parser.add_argument("--alone", action="store_true", help="agents share nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main() -> int:
    given = options()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder, target = Path(name), Path(name) / "target"
        shards = make_shards(folder / "source", int(given.bytes or (2e8 if given.agents else 4e9)), given.shards)
        size, sent = sum(shard.size for shard in shards), Counter[str]()
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(shards, sent))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": url, "MALLOC_ARENA_MAX": "2"}
        with ExitStack() as stack:
            stack.callback(server.shutdown)
            if given.store:
                environment = stack.enter_context(bucket(shards, folder, given.models))
            if given.load:
                stack.enter_context(load())
            if given.agents:
                kind = "s3://models/model-{}" if given.store else "hf://org/model-{}@main"
                if given.store:
                    through = stack.enter_context(counting(environment["AWS_ENDPOINT_URL"], sent))
                    environment["AWS_ENDPOINT_URL"] = through
                sources = [kind.format(number) for number in range(given.models)]
                run = share(sources, environment, target, given.agents, given.alone)
                sent.pop("asked", None)
            else:
                tools = store_tools(environment, target) if given.store else hub_tools(url, shards, target)
                runs = run_rounds(tools, target, given.rounds)

    result: dict[str, object] = {"machine": machine(), "gigabytes": round(size / 1e9, 2), "shards": given.shards}
    if given.agents:
        arrived = size * given.models * given.agents
        result |= {"agents": given.agents, "models": given.models, "alone": given.alone}
        result |= {"copies": round(sum(sent.values()) / (size * given.models), 2), "wall_s": round(run.wall_s, 1)}
        result |= {"cpu_s_per_gb": round(run.cpu_s / arrived * 1e9, 2), "most_mib": round(run.most_mib)}
        show(result, given.json)
        return 0
    rates = {name: size / 1e9 / statistics.median(run.wall_s for run in found) for name, found in runs.items()}
    best = max((name for name in rates if name != "pull"), key=rates.__getitem__)
    for name, found in runs.items():
        result[f"{name}_gb_per_s"] = round(rates[name], 2)
        result[f"{name}_fastest_gb_per_s"] = round(size / 1e9 / min(run.wall_s for run in found), 2)
        result[f"{name}_cpu_s_per_gb"] = round(statistics.median(run.cpu_s for run in found) / size * 1e9, 2)
    ratio = rates["pull"] / rates[best]
    lasting = {name: statistics.median(run.lasting_s for run in found) for name, found in runs.items()}
    result |= {"best": best, "ratio": round(ratio, 2), "lasting_ratio": round(lasting[best] / lasting["pull"], 2)}
    show({**result, "target_ratio": TARGET_RATIO}, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
