"""A headless Chromium for tests of the service's page; a reason where there is none."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = (
    None
    if CHROMIUM and DRIVER
    else "no Chromium with its driver on this machine (Debian: apt-get install chromium chromium-driver)"
)
WAIT_SECONDS = 120.0

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--window-size=1400,1000",
)


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    """A browser with a fresh profile, which keeps what its console says."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Debian's start script asks for a home of its own for crash reports.
    environment = {**os.environ, "HOME": str(profile.parent)}
    service = webdriver.ChromeService(executable_path=str(DRIVER), env=environment)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(WAIT_SECONDS)
        yield driver
    finally:
        driver.quit()


def until(condition: Callable[[], Any], what: str) -> Any:
    """Ask until there is an answer; an element that was replaced meanwhile is none."""
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(StaleElementReferenceException, NoSuchElementException):
            if found := condition():
                return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {WAIT_SECONDS:.0f} s")


def console(driver: Chrome) -> list[str]:
    """Return the console's new messages, without those of no weight."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
