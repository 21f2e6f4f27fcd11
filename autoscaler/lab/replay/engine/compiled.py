"""Compilation of the hot loops of replay runs and bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    from numba import njit
except ImportError as error:
    raise ImportError("the simulator needs numba: pip install 'vllm-autoscaler[sim]'") from error

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile on the first call, and cache the result on disk where possible. Results are exact: no `fastmath`."""
    try:
        return cast(Function, njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # no writable cache folder, as in a read-only container
        return cast(Function, njit(error_model="numpy")(function))
