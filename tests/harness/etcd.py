"""etcd, the store of kube-apiserver: from KUBEBUILDER_ASSETS if it is there, otherwise Debian's `etcd-server`."""

import os
from pathlib import Path

from tests.harness.process import Process, answers, free_port, require_binary


def etcd(directory: Path) -> tuple[str, Process]:
    """Return the client URL and the process, which is not started."""
    url = f"http://127.0.0.1:{free_port()}"
    provided = Path(os.environ.get("KUBEBUILDER_ASSETS", "")) / "etcd"
    binary = require_binary("etcd", "apt-get install etcd-server", provided if provided.is_absolute() else None)
    command = [binary, "--data-dir", directory / "etcd", "--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", "http://127.0.0.1:0"]
    return url, Process("etcd", command, directory, ready=lambda: answers(f"{url}/health"))
