#!/usr/bin/env python3
"""Run `preflight` on a folder of cases with a real Prometheus, and compare what it finds with what is right.

    tools/preflight_cases.py FOLDER [NAME ...] [--show] [--without-server]

A case is a folder with manifests.yaml, expect.yaml, and optionally cluster.yaml and metrics.txt. A finding matches an
expected one if its object is the same, its path is the same or above or below it, and its identifier covers the
subject (SUBJECTS). Recall counts findings that are not optional; a false alarm is one that an entry of `not` names, or
an error or warning in a good case.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

COMMAND = Path(sys.executable).with_name("vllm-autoscaler")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

SUBJECTS = {
    "VA1201": r"name does not exist|metric does not exist|returns nothing",
    "VA1202": r"label .*does not exist|metric or label does not exist|returns nothing",
    "VA1203": r"value|label .* does not exist|no series|metric or label does not exist|returns nothing",
    "VA1204": r"several series|series per pod|multiple",
    "VA1205": r"selector|other workloads|another namespace",
    "VA1206": r"dies at zero|never wakes|cannot wake|zero",
    "VA1207": r"mean|average|max",
    "VA1208": r"metricType",
    "VA1209": r"threshold",
    "VA1210": r"fallback",
    "VA1211": r"cooldown",
    "VA1212": r"GPU memory",
    "VA1213": r"GPU utili",
    "VA1214": r"two autoscalers|second autoscaler",
    "VA1215": r"scale subresource|cannot be scaled|cannot scale",
    "VA1216": r"target",
    "VA1217": r"router|twice",
    "VA1218": r"rate|window|scrape",
    "VA1219": r"metricName",
    "VA1220": r"effect",
    "VA1221": r"poll",
    "VA1222": r"idle",
    "VA1223": r"activation",
    "VA1224": r"cannot scale|bounds|minimum|maximum|disabled|request",
    "VA1225": r"VPA|[Vv]ertical",
    "VA1226": r"CPU|cpu|host memory|memory of the host",
    "VA1227": r"tolerance",
    "VA1228": r"query|refuse|invalid",
    "VA1230": r"trigger|missing|threshold|query",
    "VA1231": r"replicas",
    "VA1232": r"held|TTL|flow",
    "VA1233": r"rank|data parallel",
    "VA1301": r"utilisation",
    "VA1302": r"context",
    "VA1303": r"weights",
    "VA1304": r"tensor parallel|parallel",
    "VA1305": r"log-stats|metrics",
    "VA1306": r"max-num-seqs",
    "VA1307": r"eager",
    "VA1308": r"bfloat16|number format|dtype",
    "VA1309": r"quantization",
    "VA1310": r"slice|tensor parallel",
    "VA1401": r"grace",
    "VA1402": r"shutdown-timeout|SIGTERM|aborted",
    "VA1403": r"grace|shutdown-timeout|preStop",
    "VA1404": r"startup probe",
    "VA1405": r"initialDelay",
    "VA1406": r"liveness",
    "VA1407": r"liveness",
    "VA1408": r"latest|tag",
    "VA1409": r"shared memory|shm",
    "VA1410": r"rollout",
    "VA1411": r"budget",
    "VA1412": r"host port|hostPort|host network",
    "VA1413": r"layer|weights in",
    "VA1414": r"shutdown-timeout|longest answers",
    "VA1501": r"time-sliced|shared|MPS",
    "VA1502": r"utilisation|share",
    "VA1503": r"spot",
    "VA1504": r"consolidation|do-not-disrupt",
    "VA1505": r"quota",
    "VA1506": r"ClusterQueue|quota",
    "VA1507": r"node",
    "VA1508": r"[Pp]riority|preempt",
    "VA1509": r"[Pp]riority|preempt",
    "VA1510": r"Argo|replicas",
    "VA1511": r"RespectIgnoreDifferences|ignoreDifferences",
    "VA1512": r"Flux|replicas",
    "VA1513": r"worker group|replicas than",
    "VA1514": r"grace|notice",
    "VA1515": r"limit",
    "VA1601": r"scrape interval|interval",
    "VA1602": r"label pod|relabel",
    "VA1603": r"bucket",
    "VA1604": r"without metrics|no metrics",
    "VA1605": r"relabel|drop",
    "VA1606": r"kube-state",
    "VA1607": r"DCGM",
    "VA1608": r"twice|two scrape",
    "VA1609": r"honor|exporter",
    "VA1610": r"port",
    "VA1611": r"scrapeTimeout|timeout",
    "VA1612": r"cluster",
}
"""Expected subjects that an identifier covers, as patterns."""


class Judged(NamedTuple):
    """What came of one case."""

    name: str
    matched: int
    wanted: int
    missed: list[str]
    false: list[str]
    other: list[str]


def seconds(text: str) -> float:
    return sum(float(n) * UNITS_S[u] for n, u in re.findall(r"([+-]?\d+(?:\.\d+)?)([smhd])", text))


def samples(text: str, now: float) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield series with their samples (time, value). Comments steer: NOW, FROM a TO b, RISES, GROWS n/s, EVERY n."""
    start, end, rises, grows, every = now - 1800, now, False, 0.0, 0.0
    for line in text.splitlines():
        if line.strip() == "# NOW":
            start, end, rises = now - 1800, now, False
        elif match := re.match(r"# FROM (\S+) TO (\S+)", line):
            start = now + seconds(match[1])
            end, rises = (now if match[2] == "NOW" else now + seconds(match[2])), False
        elif line.strip() == "# RISES":
            rises = True
        elif match := re.match(r"# GROWS (\S+)/s", line):
            grows = float(match[1])
        elif match := re.match(r"# EVERY (\S+)", line):
            every = seconds(match[1])
        elif line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            base = now + seconds(value[1:]) if value.startswith("@") else float(value)
            step = every or (15 if end - start <= 7200 else 60)
            times = [end - i * step for i in range(int((end - start) // step), -1, -1)]
            if rises:
                yield series, [(t, base * (t - start) / (end - start)) for t in times]
            else:
                yield series, [(t, base + grows * (t - start)) for t in times]
            grows, every = 0.0, 0.0


def open_metrics(text: str, now: float) -> str:
    """Return text for promtool. A series that stands in several spans has each time once, in order."""
    series: dict[str, dict[float, float]] = {}
    for name, points in samples(text, now):
        series.setdefault(name, {}).update(points)
    rows = [f"{name} {value!r} {t:.3f}" for name, points in series.items() for t, value in sorted(points.items())]
    return "\n".join(rows) + "\n# EOF\n"


@contextmanager
def server(metrics: Path) -> Iterator[str]:
    """Run a Prometheus that has the series of a file; yield its URL."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        source, data, config = Path(folder, "m.om"), Path(folder, "data"), Path(folder, "p.yml")
        source.write_text(open_metrics(metrics.read_text(), float(int(time.time()))))
        config.write_text("global: {}\n")
        filled = ["promtool", "tsdb", "create-blocks-from", "openmetrics", source, data]
        subprocess.run(filled, check=True, capture_output=True)
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}"]
        command += ["--storage.tsdb.retention.time=30d", f"--web.listen-address={address}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                try:
                    urllib.request.urlopen(f"http://{address}/-/ready", timeout=1).read()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()


Preflight = Callable[..., str]
"""Runs `preflight` with these arguments and returns what it printed."""


def run_command(*arguments: object) -> str:
    command = [COMMAND, "preflight", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def report(case: Path, preflight: Preflight, url: str = "") -> dict[str, Any]:
    """Run `preflight` on a case; return what it printed."""
    files = [case / name for name in ("manifests.yaml", "cluster.yaml") if (case / name).exists()]
    result: dict[str, Any] = json.loads(
        preflight(*files, "--json", "--fail-on", "never", *(["--prometheus", url] if url else []))
    )
    return result


def related(path: str, others: list[str]) -> bool:
    """Return whether a path is one of some, or above or below one of them."""

    def parts(text: str) -> list[str]:
        return re.findall(r'\["[^"]*"\]|\[\d+\]|[^.\[\]]+', text)

    own = parts(path)
    for other in others:
        listed = parts(other)
        shorter = min(len(own), len(listed))
        if own[:shorter] == listed[:shorter]:
            return True
    return False


def is_about(finding: dict[str, Any], entry: dict[str, Any]) -> bool:
    objects = [entry["object"], *entry.get("also", [])]
    paths = [entry["path"], *entry.get("also_paths", [])] if "path" in entry else [finding["path"]]
    elsewhere = finding["object"] in objects[1:]
    return (
        finding["object"] in objects
        and (elsewhere or related(finding["path"], paths))
        and re.search(SUBJECTS[finding["id"]], entry["subject"]) is not None
    )


def judge(case: Path, found: dict[str, Any], has: set[str]) -> Judged:
    """Compare a report with what is right. has: what the command was given, of manifests, metrics, cluster."""
    expect = yaml.safe_load((case / "expect.yaml").read_text())
    findings, left = found["findings"], list(found["findings"])
    missed, matched, wanted = [], 0, 0
    for entry in expect["findings"]:
        needed = set(entry["needs"]) <= has
        same = [each for each in left if is_about(each, entry)] or [each for each in findings if is_about(each, entry)]
        if same:
            left = [each for each in left if each is not same[0]]
        if entry.get("optional"):
            continue
        wanted += 1
        listed = any(each["object"] in (entry["object"], *entry.get("also", [])) for each in found["not_checked"])
        if same or (not needed and listed):
            matched += 1
        else:
            missed.append(f"{entry['object']} {entry['path']}: {entry['subject']}")
    false = [words(each) for each in findings if any(is_about(each, entry) for entry in expect["not"])]
    if expect["verdict"] == "good":
        false += [words(each) for each in findings if each["severity"] != "note"]
    return Judged(case.name, matched, wanted, missed, false, [words(each) for each in left])


def words(finding: dict[str, Any]) -> str:
    return f"{finding['severity']} {finding['id']} {finding['object']} {finding['path']}: {finding['message']}"


def judged(case: Path, *, with_server: bool = True, preflight: Preflight = run_command) -> Judged:
    """Run one case and judge it."""
    has = {"manifests"} | ({"cluster"} if (case / "cluster.yaml").exists() else set())
    if with_server and (case / "metrics.txt").exists():
        with server(case / "metrics.txt") as url:
            return judge(case, report(case, preflight, url), has | {"metrics"})
    return judge(case, report(case, preflight), has)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--show", action="store_true", help="show what else was found")
    parser.add_argument("--without-server", action="store_true", help="give the command no Prometheus")
    given = parser.parse_args()
    cases = [each.parent for each in sorted(given.folder.glob("*/expect.yaml"))]
    results = [
        judged(case, with_server=not given.without_server)
        for case in cases
        if not given.names or case.name.startswith(tuple(given.names))
    ]
    for each in results:
        print(f"{each.matched}/{each.wanted}  {each.name}" + (f"  {len(each.false)} false" if each.false else ""))
        for text in each.missed:
            print(f"    missed  {text}")
        for text in each.false:
            print(f"    false   {text}")
        for text in each.other if given.show else ():
            print(f"    other   {text}")
    matched, wanted = sum(each.matched for each in results), sum(each.wanted for each in results)
    false = sum(len(each.false) for each in results)
    print(f"recall {matched}/{wanted}, false alarms {false}")
    return int(matched < wanted * 0.95 or bool(false))


if __name__ == "__main__":
    sys.exit(main())
