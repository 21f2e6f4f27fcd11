"""Measure `weights pull` beside the best single tools: one model in shards, over loopback, in one run.

    python bench/micro/weights.py [--bytes 4GB] [--shards 8] [--rounds 3] [--folder DIRECTORY] [--json]

A hub on loopback serves a model from the page cache, with `sendfile`. Each round fetches it whole with each tool, in
turn, into an empty folder on the disk of `--folder`:

* `pull`: `weights pull`, which verifies every checksum and makes the files last on the disk (`fsync`).
* `curl`: four processes at a time, one file each. It verifies nothing, and leaves the files to the kernel.
* `hf`: `hf download`, which verifies sizes, and leaves the files to the kernel.

Figures are GB/s of the fastest and the median round, CPU seconds of the tool, and `ratio`: the median rate of `pull`
divided by that of the best of the others. The hub takes CPU from all tools alike.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.micro.result import machine, show

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
BLOCK = 1 << 20
CURLS = 4
TARGET_RATIO = 0.9
PULL = [sys.executable, "-c", "from autoscaler.cli.main import main; main()", "weights", "pull"]


class Shard(NamedTuple):
    path: Path
    size: int
    sha256: str


class Run(NamedTuple):
    """One transfer by one tool."""

    wall_s: float
    cpu_s: float


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


def handler(shards: Sequence[Shard]) -> type[BaseHTTPRequestHandler]:
    """Return a hub with one model, as `hf download` and `weights pull` read it."""
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
                info = {"_id": "1", "id": "org/model", "sha": COMMIT, "siblings": siblings}
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
    """Run commands, so many at a time, and return how long they took."""
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


def run_rounds(tools: dict[str, Callable[[], Run]], target: Path, rounds: int) -> dict[str, list[Run]]:
    """Run each tool in each round, in another order each time."""
    runs: dict[str, list[Run]] = {name: [] for name in tools}
    names = list(tools)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            runs[name].append(tools[name]())
            print(f"  {name}: {runs[name][-1].wall_s:.2f} s, {runs[name][-1].cpu_s:.2f} CPU s", file=sys.stderr)
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=4e9)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; default: the temporary one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder, target = Path(name), Path(name) / "target"
        shards = make_shards(folder / "source", int(given.bytes), given.shards)
        size = sum(shard.size for shard in shards)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(shards))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tools = hub_tools(f"http://127.0.0.1:{server.server_port}", shards, target)
        runs = run_rounds(tools, target, given.rounds)
        server.shutdown()

    rates = {name: size / 1e9 / statistics.median(run.wall_s for run in found) for name, found in runs.items()}
    best = max((name for name in rates if name != "pull"), key=rates.__getitem__)
    result: dict[str, object] = {"machine": machine(), "gigabytes": round(size / 1e9, 2), "shards": given.shards}
    for name, found in runs.items():
        result[f"{name}_gb_per_s"] = round(rates[name], 2)
        result[f"{name}_fastest_gb_per_s"] = round(size / 1e9 / min(run.wall_s for run in found), 2)
        result[f"{name}_cpu_s"] = round(statistics.median(run.cpu_s for run in found), 2)
    ratio = rates["pull"] / rates[best]
    show({**result, "best": best, "ratio": round(ratio, 2), "target_ratio": TARGET_RATIO}, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
