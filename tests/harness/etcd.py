"""etcd from Debian's `etcd-server`, the store below kube-apiserver."""

from pathlib import Path

from tests.harness.process import Process, answers, free_port, require_binary


def etcd(directory: Path) -> tuple[str, Process]:
    """Return the client URL and the process, not yet started."""
    url = f"http://127.0.0.1:{free_port()}"
    binary = require_binary("etcd", "apt-get install etcd-server")
    command = [binary, "--data-dir", directory / "etcd", "--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", "http://127.0.0.1:0"]
    return url, Process("etcd", command, directory, ready=lambda: answers(f"{url}/health"))
