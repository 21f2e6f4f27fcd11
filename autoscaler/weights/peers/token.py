"""The token of a cluster: agents sign requests with it, and never send it."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from autoscaler.config.findings import shown
from autoscaler.weights.disk import read_small

MIN_BYTES, MAX_BYTES = 16, 4096
SKEW_S = 60  # most that the clocks of two nodes differ, and how long a signature is valid
SEAL_BYTES = 32
SCHEME = "VllmAutoscalerWeights"
_HEADER = re.compile(rf"{SCHEME} ([0-9]{{1,12}}):([0-9a-f]{{64}})")


class TokenError(Exception):
    """The file holds no token. The text says why, without its content."""


class ClusterToken:
    """A secret in a file, which may be replaced while the process runs."""

    def __init__(self, path: Path) -> None:
        """Raises TokenError."""
        self._path = path
        self._secret = b""
        self._changed_s = -1.0
        self._read()

    def sign(self, method: str, target: str, range_: str, now_s: float) -> str:
        """Return the Authorization header of a request. target: path with query. now_s: Unix time."""
        self._reread()
        return f"{SCHEME} {int(now_s)}:{self._digest(method, target, range_, int(now_s))}"

    def is_signed(self, header: str, method: str, target: str, range_: str, now_s: float) -> bool:
        """Tell whether a request was signed with this token, not long ago."""
        found = _HEADER.fullmatch(header)
        if found is None or abs(now_s - int(found[1])) > SKEW_S:
            return False
        self._reread()
        return hmac.compare_digest(found[2], self._digest(method, target, range_, int(found[1])))

    def sealing(self, target: str, range_: str) -> hmac.HMAC:
        """Return the seal of an answer, without its content."""
        return hmac.new(self._secret, f"answer\n{target}\n{range_}\n".encode(errors="replace"), hashlib.sha256)

    @staticmethod
    def is_seal(seal: hmac.HMAC, stated: bytes) -> bool:
        """Tell whether content has the seal that its sender states."""
        return hmac.compare_digest(seal.digest(), stated)

    def _digest(self, method: str, target: str, range_: str, time_s: int) -> str:
        text = f"{method}\n{target}\n{range_}\n{time_s}".encode(errors="replace")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    def _reread(self) -> None:
        """Read the file again if it changed. A file that cannot be read now leaves the token as it was."""
        try:
            if self._path.stat().st_mtime != self._changed_s:
                self._read()
        except (OSError, TokenError):
            return

    def _read(self) -> None:
        try:
            content, changed_s = read_small(self._path.resolve(), MAX_BYTES + 1)
        except OSError as error:
            raise TokenError(f"{shown(str(self._path))} cannot be read: {error.strerror}") from error
        secret = content.strip()
        if not MIN_BYTES <= len(secret) <= MAX_BYTES:
            allowed = f"allowed: {MIN_BYTES} to {MAX_BYTES} bytes"
            raise TokenError(f"{shown(str(self._path))} holds a token of {len(secret)} bytes; {allowed}")
        self._secret, self._changed_s = secret, changed_s
