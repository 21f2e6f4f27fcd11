"""The source of a model: a URI such as hf://meta-llama/Llama-3.1-8B@5206a32e. It is untrusted: users write it."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from autoscaler.config.findings import shown

MAX_CHARS = 512
KEY_CHARS = 16
SCHEMES = ("hf", "s3", "gs", "az", "https", "file")
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB, FOLDERS = "hub", "models"
"""Folders below the root: HF_HUB_CACHE of the engines, and one folder for each model of another source."""

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB = re.compile(rf"({_PART}/)?{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,221}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?")
_SEGMENT = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff\\?#]{1,255}")


class InvalidSourceError(ValueError):
    """A text is no source. The text of the error names the value found, and what is allowed."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{shown(text)} is no source of weights: {why}")
        self.why = why.partition("; allowed: ")[0]  # the problem only


class ModelSource(NamedTuple):
    """A valid source."""

    scheme: str  # one of SCHEMES
    location: str  # "org/name", "bucket/prefix", "host/path", "/directory"
    revision: str = ""  # branch, tag or commit of a hub; "": the scheme has none

    def __str__(self) -> str:
        return f"{self.scheme}://{self.location}" + (f"@{self.revision}" if self.revision else "")

    @property
    def folder(self) -> str:
        """Return where its files are below the root of a node: as in the hub's own cache, or in a folder for it alone.

        Such a folder has a readable name that is unique: the last part of the source, and its key.
        """
        if self.scheme == "hf":
            return f"{HUB}/models--{self.location.replace('/', '--')}"
        last = re.sub(r"[^A-Za-z0-9._-]+", "-", self.location.rpartition("/")[2]).strip(".-")[:60]
        return f"{FOLDERS}/{last or 'model'}-{self.key}"

    @property
    def key(self) -> str:
        """A short name for folders and labels: the first 16 hexadecimal digits of the SHA-256 of the source."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:KEY_CHARS]


def parse(text: str) -> ModelSource:
    """Parse a source. Raises InvalidSourceError."""
    if len(text) > MAX_CHARS:
        raise _invalid(text, f"it has more than {MAX_CHARS} characters")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in SCHEMES:
        raise _invalid(text, f"its scheme is unknown; allowed: {', '.join(f'{name}://' for name in SCHEMES)}")
    if scheme == "hf":
        location, _, revision = rest.partition("@")
        if not _HUB.fullmatch(location) or _has_dots(location) or "--" in location:  # "--" stands for "/" in folders
            raise _invalid(text, f"{shown(location)} is no model of a hub; allowed: ORGANISATION/NAME")
        if not revision:
            raise _invalid(text, "its revision is missing; allowed: hf://ORGANISATION/NAME@REVISION, best a commit")
        if not _REVISION.fullmatch(revision) or _has_dots(revision) or ".lock" in revision:
            raise _invalid(text, f"{shown(revision)} is no revision; allowed: a branch, a tag or a commit")
        return ModelSource(scheme, location, revision)
    if scheme == "file" and not rest.startswith("/"):
        raise _invalid(text, "its path is relative; allowed: file:///DIRECTORY")
    first, *segments = rest.strip("/").split("/")
    if scheme == "file":
        segments = [first, *segments]
    elif not (_HOST if scheme == "https" else _BUCKET).fullmatch(first) or ".." in first:
        raise _invalid(text, f"{shown(first)} is no {'host' if scheme == 'https' else 'bucket'}")
    if not segments or not all(_SEGMENT.fullmatch(part) and part not in (".", "..") for part in segments):
        why = "its path is empty, or has a part that is empty, '.', '..', too long or not printable"
        raise _invalid(text, why)
    path = "/".join(segments)
    return ModelSource(scheme, f"/{path}" if scheme == "file" else f"{first}/{path}")


def _has_dots(text: str) -> bool:
    return ".." in text or any(part in ("", ".") for part in text.split("/"))


def _invalid(text: str, why: str) -> InvalidSourceError:
    return InvalidSourceError(text, why)
