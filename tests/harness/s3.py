"""versitygw, a real S3 server on a directory, with one account."""

from __future__ import annotations

from pathlib import Path

from tests.harness.process import Process, answers, free_port, require_binary, where

ACCESS_KEY, SECRET_KEY, REGION = "access", "secret-of-tests", "us-east-1"


def s3(directory: Path) -> tuple[str, Process]:
    """Return the URL and the process, which is not started. Folders below `directory / "buckets"` are buckets."""
    port = free_port()
    buckets, metadata = directory / "buckets", directory / "metadata"
    buckets.mkdir()
    metadata.mkdir()
    binary = require_binary("versitygw", "make versitygw", where("versitygw.sh"))
    command = [binary, "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--region", REGION]
    command += ["--port", f"127.0.0.1:{port}", "--health", "/health", "--quiet"]
    command += ["posix", "--sidecar", metadata, buckets]
    url = f"http://127.0.0.1:{port}"
    return url, Process("versitygw", command, directory, ready=lambda: answers(f"{url}/health"))
