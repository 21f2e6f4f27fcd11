"""The log of the process."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure_log(style: str, level: str) -> None:
    """Write the log to standard error, as JSON lines or for people."""
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    renderer: Any = structlog.processors.JSONRenderer() if style == "json" else console
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([structlog.processors.format_exc_info] if style == "json" else []),
    ]
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    libraries = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    libraries.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[remove, *processors, renderer]))
    logging.basicConfig(level=logging.ERROR, handlers=[libraries])
