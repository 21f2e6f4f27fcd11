"""How the hot loops of studies and bounds are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    from numba import njit
except ImportError as error:
    raise ImportError("the simulator needs numba: pip install 'vllm-autoscaler[sim]'") from error

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile on the first call and keep the result on disk, if that can be written. Exact: no `fastmath`."""
    try:
        return cast(Function, njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # neither beside the file nor in the user's cache folder: a read-only container
        return cast(Function, njit(error_model="numpy")(function))
