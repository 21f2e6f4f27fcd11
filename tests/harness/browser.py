"""Chromium from Debian's `chromium-headless-shell`, or else from `chromium`, driven by Playwright.

Both have the same engine. The shell has no windows, so that a page takes a quarter of the processor time.
One of them serves all tests. Each test has pages of its own.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.harness.process import ARTEFACTS, PATIENCE_S, Process, answers, free_port, require_binary

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PATIENCE_MS = 1000 * PATIENCE_S
expect.set_options(timeout=PATIENCE_MS)


def chromium(directory: Path) -> tuple[str, Process]:
    """Return the URL of a headless Chromium's debugging port, and the process, which is not started."""
    path = Path(shutil.which("chromium-headless-shell") or "/usr/bin/chromium")
    binary = require_binary("chromium", "apt-get install chromium-headless-shell", path)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [binary, *FLAGS, f"--remote-debugging-port={port}", f"--user-data-dir={directory / 'profile'}"]
    return url, Process("chromium", command, directory, ready=lambda: answers(f"{url}/json/version"))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Browser]:
    """Connect to a running Chromium; close at the end what was opened in it, and leave it running."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(url)
        try:
            yield browser
        finally:
            await browser.close()


async def screenshot(page: Page, name: str) -> Path:
    """Keep a picture of the whole page as `test-artefacts/NAME.png` and return its path."""
    path = ARTEFACTS / f"{name}.png"
    await page.screenshot(path=path, full_page=True)
    return path
