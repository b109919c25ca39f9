"""The page, in a real browser: what it shows, that it lives, and that no job's name becomes markup."""

from __future__ import annotations

import contextlib
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.browser import MISSING, chromium, console, until
from tests.service.problem import claim
from tests.service.process import service_process, small_problem
from tests.service.stage import TOKEN, Stage, served, staged

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

NASTY = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
needs_browser = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


def page_file(name: str) -> str:
    return (files("dkgp.service.web") / name).read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Collects every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_inline() -> None:
    tags = Tags()
    tags.feed(page_file("page.html"))
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in tags.found:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name != "style", tag
            if name in ("src", "href", "action"):
                assert (value or "").startswith("/"), (tag, value)
        assert tag != "script" or "src" in attributes
        assert tag != "style"
    for name in ("page.js", "page.css"):
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg|/)", page_file(name).replace(r"^https?:\/\/", ""))
    # Every part that the script asks for is there.
    assert set(re.findall(r'byId\("([a-z-]+)"\)', page_file("page.js"))) <= set(ids)


def test_the_script_never_writes_markup() -> None:
    script = page_file("page.js")
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "localStorage",
    ):
        assert word not in script


def test_the_page_says_whether_a_token_is_needed(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        assert 'data-token="required"' in stage.anonymous().get("/").text
    with staged(tmp_path, token=None) as stage:
        page = stage.client.get("/")
        assert 'data-token="none"' in page.text
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert stage.client.get("/page.js").headers["content-type"].startswith("text/javascript")
        assert stage.client.get("/icon.svg").headers["content-type"] == "image/svg+xml"


def text(driver: Chrome, selector: str) -> str:
    return str(driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))


def shown(driver: Chrome, selector: str) -> bool:
    return any(element.is_displayed() for element in driver.find_elements("css selector", selector))


def sign_in(driver: Chrome, token: str) -> None:
    driver.find_element("id", "token").send_keys(token)
    driver.find_element("css selector", "#sign-in button").click()


def points(driver: Chrome) -> int:
    return int(
        driver.execute_script("return Number(document.querySelector('#plot .curve')?.getAttribute('data-points') ?? 0)")
    )


@pytest.mark.long
@needs_browser
def test_the_address_that_serve_prints_signs_in(stage: Stage, tmp_path: Path) -> None:
    """And the token does not stay in the address, nor in what the browser goes back to."""
    job_id = stage.submit("1.zarr")["id"]
    with served(stage) as url, chromium(tmp_path / "profile") as driver:
        driver.get(f"{url}/#token={TOKEN}")
        until(lambda: job_id in text(driver, "#rows") or shown(driver, "#rows tr"), "lists the job")
        assert not shown(driver, "#sign-in")
        # The service's token is an administrator's, who sees whose job each is.
        assert shown(driver, "#owner-column")
        assert text(driver, "#rows tr td:nth-child(2)") == stage.client.get(f"/v1/jobs/{job_id}").json()["owner"] != ""
        assert driver.current_url == f"{url}/"
        assert driver.execute_script("return history.length") == 2
        # Into a tab that asks for the token already: only what follows the # changes.
        driver.execute_script("document.getElementById('forget').click()")
        until(lambda: shown(driver, "#sign-in"), "asks for the token")
        driver.execute_script("location.hash = arguments[0]", f"#token={TOKEN}")
        until(lambda: shown(driver, "#rows tr") and not shown(driver, "#sign-in"), "lists the job again")
        assert TOKEN not in driver.current_url


@pytest.mark.long
@needs_browser
def test_the_page_in_a_browser(stage: Stage, tmp_path: Path) -> None:
    """Signs in, lists, follows a curve as it grows, cancels, resumes; by mouse and keyboard; no markup from data."""
    first = stage.submit("1.zarr", name="housing, block 200")["id"]
    nasty = stage.submit("2.zarr", name=NASTY)["id"]
    claimed = claim(stage.queue)
    assert claimed.id == first
    writer = stage.events(first)

    def progress(passes: float, gradient: float) -> None:
        writer.write(
            "progress",
            label="train",
            iteration=int(passes),
            column_passes=passes,
            gradient_inf_norm=gradient,
            tolerance=1e-3,
            seconds_left=30.0,
        )

    progress(1.0, 10.0)
    progress(2.0, 1.0)
    with served(stage) as url, chromium(tmp_path / "profile") as driver:
        driver.get(url)
        until(lambda: shown(driver, "#sign-in"), "asks for the token")
        assert not shown(driver, "#jobs")
        assert console(driver) == []

        # A bad token is told; nothing of the jobs is in the page.
        sign_in(driver, "not-the-token-at-all")
        until(lambda: "does not accept this token" in text(driver, "#sign-in-error"), "tells of the bad token")
        assert "housing" not in driver.page_source
        assert all("401" in message for message in console(driver))

        sign_in(driver, TOKEN)
        until(lambda: len(driver.find_elements("css selector", "#rows tr")) == 2, "lists the jobs")
        assert driver.execute_script("return sessionStorage.length + 100 * localStorage.length") == 1
        row = f"tr[data-job='{first}']"
        assert "housing, block 200" in text(driver, row)
        until(lambda: "running" in text(driver, row) and "1.00e+0" in text(driver, row), "shows the figures")
        assert NASTY in text(driver, f"tr[data-job='{nasty}'] button")
        assert driver.execute_script("return window.broken") is None
        assert driver.find_elements("css selector", "#rows script, #rows img") == []

        # One job, opened by the keyboard; its curve grows while one looks.
        driver.find_element("css selector", f"{row} button").send_keys("\n")
        until(lambda: points(driver) == 2, "draws the curve")
        assert "tolerance 1e-3" in text(driver, "#plot .tolerance-label") or "tolerance 1e-3" in driver.page_source
        progress(3.0, 0.1)
        until(lambda: points(driver) == 3, "draws a point that came while it was open")
        progress(4.0, 0.01)
        until(lambda: points(driver) == 4 and "after 4.0 passes" in text(driver, "#curve-caption"), "draws another")
        assert text(driver, "#curve-caption").startswith("largest residual against")
        assert "1.00e-2" in text(driver, "#events li:last-child")
        assert str(stage.root / "1.zarr") in text(driver, "#options")
        writer.write("note", message=NASTY)
        until(lambda: NASTY in text(driver, "#events li:last-child"), "shows a note as text")

        # The other, by mouse: cancelled, resumed.
        driver.find_element("css selector", f"tr[data-job='{nasty}'] .id").click()
        until(lambda: text(driver, "#detail-title") == NASTY, "opens the other job")
        driver.find_element("id", "cancel").click()
        until(lambda: text(driver, "#detail-state") == "cancelled", "shows that it is cancelled")
        assert stage.queue.get(nasty).state == "cancelled"
        driver.find_element("id", "resume").click()
        until(lambda: text(driver, "#detail-state") == "queued", "shows that it waits again")
        until(lambda: shown(driver, "#cancel"), "can be cancelled again")
        driver.switch_to.active_element.send_keys("\ue00c")  # Escape
        until(lambda: not shown(driver, "#detail"), "closes the job")

        # Only the jobs of one state.
        driver.find_element("css selector", "#filters [data-state='queued']").click()
        until(lambda: not driver.find_elements("css selector", row), "leaves the running job out")
        assert driver.execute_script("return window.broken") is None
        assert console(driver) == []

        # Leaving takes everything with it.
        driver.find_element("id", "forget").click()
        until(lambda: shown(driver, "#sign-in"), "asks for the token again")
        assert driver.execute_script("return sessionStorage.length") == 0
    writer.close()


@needs_browser
@pytest.mark.slow
def test_a_real_job_on_the_page(tmp_path: Path) -> None:
    """A training job is submitted, appears, draws its curve, and is done."""
    options = small_problem(tmp_path, 4000)
    with service_process(tmp_path / "queue", tmp_path) as service, chromium(tmp_path / "profile") as driver:
        driver.get(service.url)
        until(lambda: shown(driver, "#sign-in"), "asks for the token")
        sign_in(driver, TOKEN)
        until(lambda: shown(driver, "#empty"), "says that there are none")
        body: dict[str, Any] = {"command": "train", "options": options, "name": "friedman"}
        job_id = service.client.post("/v1/jobs", json=body).json()["id"]
        until(lambda: shown(driver, f"tr[data-job='{job_id}']"), "lists the job that came")
        driver.find_element("css selector", f"tr[data-job='{job_id}']").click()
        seen: set[int] = set()

        def done() -> bool:
            seen.add(points(driver))
            return text(driver, "#detail-state") == "done"

        until(done, "shows that the job is done")
        until(lambda: "done" in text(driver, f"tr[data-job='{job_id}']"), "lists the job as done")
        until(lambda: "converged" in text(driver, "#result"), "shows the result")
        assert points(driver) > 5
        assert len(seen) > 3, f"the curve did not grow point by point: {sorted(seen)}"
        assert service.client.get(f"/v1/jobs/{job_id}").json()["document"]["converged"] is True
        assert console(driver) == []
        if (screenshot := tmp_path / "page.png").parent.exists():
            assert driver.save_screenshot(str(screenshot))
        with contextlib.suppress(Exception):
            service.stop()
