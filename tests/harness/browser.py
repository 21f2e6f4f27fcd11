"""Chromium from Debian's `chromium`, driven by Playwright."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.harness.process import ARTEFACTS, PATIENCE_S, require_binary

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PATIENCE_MS = 1000 * PATIENCE_S
expect.set_options(timeout=PATIENCE_MS)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run a headless Chromium."""
    binary = require_binary("chromium", "apt-get install chromium", Path("/usr/bin/chromium"))
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=binary, args=FLAGS)
        try:
            yield chromium
        finally:
            await chromium.close()


async def screenshot(page: Page, name: str) -> Path:
    """Keep a picture of the whole page as `test-artefacts/NAME.png` and return its path."""
    path = ARTEFACTS / f"{name}.png"
    await page.screenshot(path=path, full_page=True)
    return path
