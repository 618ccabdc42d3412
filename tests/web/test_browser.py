"""The page in a browser without a screen."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import pipeloom
from tests.support.served import LONG as LONG_SOLVE
from tests.support.served import PROFILE, Served, serving

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

BROWSERS = list(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSERS and DRIVER), reason="chromium and its driver are not installed"
)
SMALL = {"ranks": "4", "m": "6", "time": "0.2", "places": "linear"}
LONG = {"time": "100", "places": "wave:2"}


class Page:
    """The page in a browser."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser, self.url = browser, url

    def open(self, **state: str) -> None:
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}#{urlencode(state)}")

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of the first element, or an empty text if there is none."""
        found = f"document.querySelector({json.dumps(selector)})"
        return str(self.script(f"return {found}?.textContent ?? ''"))

    def script(self, code: str) -> Any:
        return self.browser.execute_script(code)

    def wait(self, condition: Callable[[], object]) -> None:
        WebDriverWait(self.browser, 30, poll_frequency=0.02).until(lambda _: condition())

    def solved(self) -> None:
        self.wait(lambda: self.text("#status").startswith("Done"))
        self.wait(lambda: self.text(".panel h3"))

    def set(self, key: str, value: str) -> None:
        """Type a value into a field."""
        field = self.find(f"#{key}")
        field.clear()
        field.send_keys(value, Keys.TAB)

    @property
    def errors(self) -> list[str]:
        """Errors of the console, without those of answers with a fault."""
        found = [entry["message"] for entry in self.browser.get_log("browser")]
        return [line for line in found if "Failed to load resource" not in line]


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSERS[0]
    words = ["--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1280,900"]
    for word in [*words, *(["--no-sandbox"] if os.geteuid() == 0 else [])]:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


@pytest.fixture
def page(browser: webdriver.Chrome, server: Served) -> Iterator[Page]:
    found = Page(browser, server.url)
    yield found
    assert found.errors == []
    browser.get("about:blank")  # stops what runs


def test_a_slider_shows_another_schedule(page: Page) -> None:
    page.open(**SMALL)
    page.solved()
    before = page.text("#rows tbody")
    page.find("#r-m").send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: "-m 7" in page.text("#command"))
    assert page.text("#rows tbody") != before
    assert "m=7" in page.browser.current_url
    assert page.find("#m").get_attribute("value") == "7"


def test_a_solve_is_watched_and_stopped(page: Page) -> None:
    page.open(**LONG)
    page.wait(lambda: "wave:2: best" in page.text("#now"))
    pixels = "return [...document.getElementById('progress').getContext('2d')"
    drawn = f"{pixels}.getImageData(0, 0, 600, 130).data].filter(Boolean).length"
    page.wait(lambda: page.script(drawn) > 1000)
    page.find("#stop").click()
    page.wait(lambda: page.text("#status").startswith("Stopped"))
    page.wait(lambda: "optimize wave:2" in page.text("#rows"))
    assert page.find("#longer").is_enabled()


def test_a_shared_link_shows_the_same_in_a_new_window(page: Page) -> None:
    page.open(**SMALL)
    page.solved()
    page.script("""document.querySelector("[data-row='zb-h1']").click()""")
    page.wait(lambda: len(page.browser.find_elements(By.CSS_SELECTOR, ".panel")) == 2)
    page.find("#in").click()
    page.find(".panel canvas").send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: "view=" in page.browser.current_url and "op=" in page.browser.current_url)
    shared, op = page.browser.current_url, page.text("#op")
    first = page.browser.current_window_handle
    page.browser.switch_to.new_window("window")
    page.browser.get(shared)
    page.wait(lambda: page.text("#op") == op)
    page.solved()
    headings = page.browser.find_elements(By.CSS_SELECTOR, ".panel h3")
    assert any("zb-h1" in heading.text for heading in headings)
    assert page.browser.current_url == shared
    page.browser.close()
    page.browser.switch_to.window(first)


def test_a_file_is_read_and_its_faults_are_told(page: Page, tmp_path: Path) -> None:
    page.open(**SMALL)
    page.solved()
    page.find("[value=file]").click()
    wrong, right = tmp_path / "wrong.json", tmp_path / "right.json"
    wrong.write_text("{")
    right.write_text(json.dumps(PROFILE | {"name": "mine"}))
    page.find("#file").send_keys(str(wrong))
    page.wait(lambda: page.text("#f-file").strip() == "expected JSON")
    page.script("document.getElementById('file').value = ''")
    page.find("#file").send_keys(str(right))
    page.wait(lambda: page.text("#file-name") == "mine")
    page.solved()
    page.set("m", "0")
    expected = "expected a whole number from 1 to 1024, got 0"
    page.wait(lambda: page.text("#f-m").strip() == expected)
    assert page.find("#m").get_attribute("aria-invalid") == "true"
    page.wait(lambda: not any(map(page.text, ("#rows tbody", "#panels", "#command", "#why"))))
    assert not page.find("#longer").is_enabled()
    page.set("m", "5")
    page.wait(lambda: "-m 5" in page.text("#command"))
    assert page.text("#f-m") == ""


def test_the_keyboard_is_enough(page: Page) -> None:
    page.open(**SMALL)
    page.solved()
    keys = page.browser.switch_to
    seen: list[str] = []
    page.script("document.activeElement.blur()")
    while "canvas" not in seen:
        keys.active_element.send_keys(Keys.TAB)
        focus = keys.active_element
        seen.append(focus.get_attribute("id") or focus.tag_name)
        outline = page.script("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen
        assert len(seen) < 80
    assert {"r-m", "m", "longer", "in"} <= set(seen)
    keys.active_element.send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: page.text("#op").startswith("F0 of stage 0"))
    keys.active_element.send_keys(Keys.ARROW_DOWN)
    page.wait(lambda: "on rank 1" in page.text("#op"))
    assert "Critical path" in page.text("#op")


def test_the_frontier_opens_a_schedule(page: Page) -> None:
    page.open(**SMALL, limits="2,3,4")
    page.solved()
    page.find("#sweep").click()
    page.wait(lambda: page.browser.find_elements(By.CSS_SELECTOR, "#frontier [role=button]"))
    page.find("#frontier [role=button]").send_keys(Keys.SPACE)
    page.wait(lambda: "limit 2" in page.text(".panel h3"))

    shared = page.browser.current_url
    page.browser.get("about:blank")
    page.browser.get(shared)
    page.wait(lambda: page.browser.find_elements(By.CSS_SELECTOR, "#frontier [role=button]"))
    page.wait(lambda: "limit 2" in page.text(".panel h3"))

    page.set("limits", "0.01")
    page.find("#sweep").click()
    page.wait(lambda: page.text("#frontier").startswith("No schedule fits"))


def test_the_page_waits_until_another_solve_ends(page: Page, server: Served) -> None:
    others = [server.begin(**LONG_SOLVE) for _ in range(2)]
    page.open(**SMALL)
    page.wait(lambda: page.text("#status") == "Waiting until another solve ends…")
    server.stop(others[0])
    page.solved()
    server.stop(others[1])


def test_the_page_solves_again_when_a_server_comes_back(browser: webdriver.Chrome) -> None:
    with serving(end=signal.SIGKILL) as first:
        page = Page(browser, first.url)
        page.open(**LONG)
        page.wait(lambda: "wave:2: best" in page.text("#now"))
    page.wait(lambda: page.text("#status") == "The server does not answer: trying again…")
    with serving(urlsplit(first.url).port or 0):
        page.wait(lambda: "wave:2: best" in page.text("#now"))
        browser.get("about:blank")


def test_a_page_with_schedules_inside_needs_no_server(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    schedules = [pipeloom.build(name, PROFILE | {"name": "</script>"}, 6) for name in ("1f1b",) * 2]
    pipeloom.show(*schedules, output=tmp_path / "x.html")
    page = Page(browser, (tmp_path / "x.html").as_uri())
    page.open()
    page.wait(lambda: page.text(".panel h3").startswith("1f1b (1)period "))
    assert "1f1b (2): period 0 % longer than 1f1b (1)." in page.text("#versus")
    page.find(".panel canvas").send_keys(Keys.ARROW_RIGHT)
    assert page.text("#op").startswith("F0 of stage 0")
    page.find("#in").click()
    page.wait(lambda: "view=" in page.browser.current_url)
    assert "why no schedule is below" in page.text("#why")
    assert not any(page.find(key).is_displayed() for key in ("#form", "#rows", "#files", "#sweep"))
    assert page.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_narrow_window_in_each_theme(page: Page, theme: str) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        page.open(**SMALL)
        page.solved()
        assert page.script("return document.documentElement.scrollWidth") <= 390
        paper = page.script("return getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 23, 29)"}[theme]
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
