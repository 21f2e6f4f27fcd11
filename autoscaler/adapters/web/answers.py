"""Common parts of all answers over HTTP: checked parameters, JSON, headers, files, and the texts of errors."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

import msgspec
from aiohttp import web

from autoscaler.adapters.web.tick_values import MAX_TEXT
from autoscaler.core.gpu_use import IdleCause
from autoscaler.core.model.fleet import PendingClass
from autoscaler.core.model.types import Recommender, Signal, Stage

COMPRESS_FROM_BYTES = 4096
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Query:
    """Checked query parameters. Errors name the parameter, the value and what is allowed."""

    def __init__(self, request: web.Request, allowed: tuple[str, ...]) -> None:
        self._values = request.query
        for key in self._values:
            if key not in allowed:
                known = ", ".join(allowed) or "none"
                raise web.HTTPBadRequest(text=f"unknown parameter {short(key)}; allowed: {known}")
            if len(self._values.getall(key)) > 1:
                raise web.HTTPBadRequest(text=f"parameter {key} is given more than once")

    def text(self, key: str) -> str:
        return self.checked(key, self._values.get(key, ""))

    def checked(self, key: str, value: str) -> str:
        if len(value) > MAX_TEXT or not value.isprintable():
            allowed = f"at most {MAX_TEXT} printable characters"
            raise web.HTTPBadRequest(text=f"{key} is {short(value)}; allowed: {allowed}")
        return value

    def number(self, key: str, default: int, low: int, high: int) -> int:
        value = self._values.get(key, str(default))
        if not re.fullmatch(r"-?[0-9]{1,16}", value, re.ASCII) or not low <= int(value) <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return int(value)

    def wrong(self, key: str, allowed: str) -> web.HTTPBadRequest:
        return web.HTTPBadRequest(text=f"{key} is {short(self._values.get(key, ''))}; allowed: {allowed}")


def short(value: str) -> str:
    return repr(value if len(value) <= 80 else value[:79] + "…")


@web.middleware
async def plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn HTTP errors into JSON, and refuse requests with a body."""
    try:
        if request.can_read_body and request.method in ("GET", "HEAD"):
            raise web.HTTPRequestEntityTooLarge(max_size=0, actual_size=0, text="a request here has no body")
        return await handler(request)
    except web.HTTPException as error:
        headers = {key: error.headers[key] for key in ("Allow", "Retry-After") if key in error.headers}
        unknown = error.status == 404 and error is request.match_info.http_exception
        text = f"nothing is served at {short(request.path)}" if unknown else error.text
        if isinstance(error, web.HTTPMethodNotAllowed):
            text = f"method {error.method[:80]}; allowed: {', '.join(sorted(error.allowed_methods))}"
        return json_answer({"error": text}, status=error.status, headers=headers)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for header, value in HEADERS.items():
        response.headers.setdefault(header, value)


def static_file(name: str) -> bytes:
    """Return one file of the package."""
    return (resources.files(__package__) / "static" / name).read_bytes()


def names() -> bytes:
    """Return the titles of what the page names, as a module."""
    titles = {
        "SIGNALS": {signal.published: signal.title for signal in Signal},
        "RECOMMENDERS": {recommender.published: recommender.title for recommender in Recommender},
        "STAGES": {stage.published: (stage.title, stage.effect) for stage in Stage},
        "IDLE_CAUSES": {cause.published: cause.title for cause in IdleCause},
        "PENDING": {pending.published: pending.title for pending in PendingClass},
    }
    return "".join(f"export const {name} = {json.dumps(of)};\n" for name, of in titles.items()).encode()


def from_memory(body: bytes, content_type: str) -> Handler:
    """Serve this body. A browser caches it but revalidates it each time."""

    async def handler(request: web.Request) -> web.Response:
        response = web.Response(body=body, content_type=content_type, charset="utf-8")
        response.headers["Cache-Control"] = "no-cache"
        if len(body) >= COMPRESS_FROM_BYTES:
            response.enable_compression()
        return response

    return handler


def json_answer(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    encoded = msgspec.json.encode(body)  # NaN and infinity become null
    response = web.Response(body=encoded, status=status, content_type="application/json", headers=headers)
    if len(encoded) >= COMPRESS_FROM_BYTES:
        response.enable_compression()
    return response


def too_busy(text: str) -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "1"})
