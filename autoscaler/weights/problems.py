"""Why weights are not on the node: one state per cause, and a sentence."""

from __future__ import annotations

from enum import StrEnum
from errno import EDQUOT, ENOSPC


class WeightsCause(StrEnum):
    """One word for what is wrong."""

    INVALID = "invalid"  # the source or one of its files has no valid name
    NOT_ALLOWED = "not_allowed"  # settings rule it out: its source, its size, or pickled weights
    NOT_FOUND = "not_found"  # there is no such model, revision or file: HTTP 404
    DENIED = "denied"  # the origin refuses the credentials: HTTP 401, 403, a gated model
    UNREACHABLE = "unreachable"  # the origin does not answer, or answers with 429 or 5xx
    CHANGED = "changed"  # a file of the origin changed while it was fetched
    CORRUPT = "corrupt"  # a fetched file does not have the checksum or the size that the origin states
    NO_SPACE = "no_space"  # the disk, or the share of it for weights, is too small
    BUSY = "busy"  # another process fetches into this folder
    DISK = "disk"  # the disk cannot be read or written


class WeightsError(Exception):
    """Weights cannot be fetched or read. The text names the thing, the value found, and what is allowed."""

    def __init__(self, cause: WeightsCause, text: str) -> None:
        super().__init__(text)
        self.cause = cause


def disk_error(error: OSError, doing: str) -> WeightsError:
    """Return what an error of the file system means. doing: "cannot write 'model.safetensors'"."""
    cause = WeightsCause.NO_SPACE if error.errno in (ENOSPC, EDQUOT) else WeightsCause.DISK
    return WeightsError(cause, f"{doing}: {error.strerror or type(error).__name__}")


def as_problem(error: WeightsError | OSError) -> WeightsError:
    """Return what any error of work on the folder means: each look at a path may meet a disk that fails."""
    return error if isinstance(error, WeightsError) else disk_error(error, "cannot use the disk")
