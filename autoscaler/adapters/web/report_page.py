"""`/report`: the report of what the daemon recorded, computed beside the ticks and kept for some minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from threading import Thread

import structlog
from aiohttp import web

from autoscaler.ports import Unavailable

KEPT_S = 600.0
"""A report is computed at most once in this time, whoever asks."""

AGAIN_S = 5
"""Seconds after which a browser that was shown no report asks again."""

SHORT_S = 1.0
"""A record that was too short is looked at again at most once in this time."""

COMPUTED = "The report is being computed. This page shows it when it is done."
TRIED_AGAIN = f"It is tried again {KEPT_S / 60:.0f} minutes after the last attempt."

CONTENT = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
NO_RECORD = (
    "This daemon keeps no record, so there is nothing to report. Start it with <code>--record DIR</code>, or read the "
    "history of Prometheus: <code>vllm-autoscaler report --prometheus URL</code>."
)
log = structlog.get_logger(__name__)


class NotYet(Unavailable):
    """The record has too little for a report, which costs next to nothing to find out. The message is sentences."""


class ReportPage:
    """Hands out the report of a record.

    make: returns the HTML, in a thread; raises NotYet or Unavailable. None: no record is kept.
    """

    def __init__(self, make: Callable[[], str] | None) -> None:
        self._make = make
        self._page, self._problem = "", ""
        self._again_s = 0.0  # monotonic time from which on it is computed again
        self._computing: Thread | None = None

    def answer(self) -> web.Response:
        """Return the last report, and begin another one if it is old."""
        headers = {"Content-Security-Policy": CONTENT}
        if self._make is None:
            text = _note(NO_RECORD)
        else:
            self._refresh(self._make)
            text = self._page
            if not text:
                headers["Refresh"] = str(AGAIN_S)
                text = _note(escape(self._problem or COMPUTED))
        response = web.Response(text=text, content_type="text/html", headers=headers)
        response.enable_compression()
        return response

    def _refresh(self, make: Callable[[], str]) -> None:
        """Begin to compute if the report is old and is not being computed."""
        now_s = time.monotonic()
        if now_s < self._again_s or (self._computing is not None and self._computing.is_alive()):
            return
        self._again_s = now_s + KEPT_S
        # The end of the process does not wait for such a thread.
        self._computing = Thread(target=self._compute, args=(make,), name="report", daemon=True)
        self._computing.start()

    def _compute(self, make: Callable[[], str]) -> None:
        try:
            self._page, self._problem = make(), ""
        except NotYet as error:
            self._page, self._problem = "", str(error)
            self._again_s = time.monotonic() + SHORT_S
        except Unavailable as error:
            self._page, self._problem = "", f"There is no report: {error}. {TRIED_AGAIN}"
        except Exception as error:
            self._problem = f"There is no report: {type(error).__name__}; the log of the daemon has more. {TRIED_AGAIN}"
            log.error("the report of the record failed", exc_info=error)


def _note(text: str) -> str:
    head = '<meta charset="utf-8"><title>Report</title><link rel="icon" href="data:,">'
    style = "font: 15px/1.5 system-ui, sans-serif; max-width: 42em; margin: 3em auto; padding: 0 1em"
    body = f'<h1>Report</h1><p>{text}</p><p><a href="/">Back to the workloads</a></p>'
    scheme = '<meta name="color-scheme" content="light dark">'
    return f'<!doctype html><html lang="en"><head>{head}{scheme}</head><body style="{style}">{body}</body></html>\n'
