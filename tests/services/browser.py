"""A real browser without a screen: Debian's Chromium, driven through its own chromedriver."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.services.processes import ServiceError

SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, whom the sandbox refuses
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_SECONDS = 60  # a page of Prefect's UI takes 2-20 s on two busy cores


class Browser:
    """One window; finds elements by the text a person would look for."""

    def __init__(self, driver: Chrome, screenshots: Path) -> None:
        self.driver = driver
        self._screenshots = screenshots

    def open(self, url: str) -> None:
        """Go to a page."""
        self.driver.get(url)

    def log_in(self, url: str, auth_string: str) -> None:
        """Open a page of a server's and give it the auth string that it asks for."""
        self.open(url)
        self.wait_for_text("Login")
        field = self.find("input")
        field.send_keys(auth_string)
        assert field.get_property("value") == auth_string
        field.send_keys(Keys.ENTER)
        self.find("a", "Deployments")

    def find(
        self, selector: str, text: str = "", *, within: WebElement | None = None
    ) -> WebElement:
        """Return the first visible element that the CSS selector and its whole text name."""

        def found(_: Chrome) -> WebElement | None:
            elements = (within or self.driver).find_elements(By.CSS_SELECTOR, selector)
            fitting = (e for e in elements if not text or e.text.strip() == text)
            return next((e for e in fitting if e.is_displayed()), None)

        made = WebDriverWait(self.driver, PATIENCE_SECONDS, 0.3).until(
            found, f"{selector} {text!r} on {self.driver.current_url}:\n{self.text()[-3000:]}"
        )
        assert made is not None
        return made

    def field(self, label: str, kind: str = "textarea") -> WebElement:
        """Return the form's element of a kind that comes next after a label."""
        path = f"//label[starts-with(normalize-space(), '{label}')]/following::{kind}[1]"
        found: WebElement = WebDriverWait(self.driver, PATIENCE_SECONDS, 0.3).until(
            lambda driver: driver.find_element(By.XPATH, path), f"a {kind} after {label!r}"
        )
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
        return found

    def fill(self, label: str, text: str) -> None:
        """Replace what a text field holds, as a person would: select all, type."""
        field = self.field(label)
        field.click()
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)

    def fill_json(self, label: str, text: str) -> None:
        """Replace what an editor of JSON holds."""
        editor = self.field(label, "div[contains(@class, 'cm-content')]")
        editor.click()
        editor.send_keys(Keys.CONTROL, "a")
        editor.send_keys(text)

    def choose(self, label: str, choice: str) -> None:
        """Pick a choice from the list after a label; a list that takes several stays open."""
        button = self.find(f"button[aria-label='Select {label}']")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        self.find("[role=option]", choice).click()
        ActionChains(self.driver).send_keys(Keys.ESCAPE).perform()

    def height(self) -> int:
        """Return how high the page is, in pixels."""
        script = "return Math.max(...[...document.querySelectorAll('*')].map(e => e.scrollHeight))"
        return int(self.driver.execute_script(script))

    def text(self) -> str:
        """Return what the page shows as text."""
        return str(self.driver.find_element(By.TAG_NAME, "body").text)

    def wait_for_text(self, text: str) -> None:
        """Return once the page shows a text."""
        WebDriverWait(self.driver, PATIENCE_SECONDS, 0.3, [Exception]).until(
            lambda _: text in self.text(), f"{text!r} on {self.driver.current_url}"
        )

    def show_tab(self, name: str, text: str) -> None:
        """Choose a tab until the page shows a text of it.

        One click is not enough: while a page of Prefect's loads, it can go back to its first tab.
        """

        def shown(_: Chrome) -> bool:
            tab = self.find("[role=tab]", name)
            if tab.get_attribute("aria-selected") != "true":
                tab.click()
            return text in self.text()

        WebDriverWait(self.driver, PATIENCE_SECONDS, 0.3, [Exception]).until(
            shown, f"{text!r} in the tab {name} on {self.driver.current_url}"
        )

    def screenshot(self, name: str) -> Path:
        """Take a picture for people to look at; `-rP` prints where."""
        path = self._screenshots / f"{name}.png"
        self.driver.save_screenshot(str(path))
        print(f"screenshot: {path}")
        return path


@contextmanager
def browser(folder: Path, *, width: int = 1400, height: int = 1500) -> Iterator[Browser]:
    """Open a browser with a profile of its own, and close it."""
    driver, binary = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or binary is None:
        raise ServiceError("install Debian's chromium and chromium-driver to run this test")
    options = Options()
    options.binary_location = binary
    profile = f"--user-data-dir={folder / 'profile'}"
    for switch in (*SWITCHES, f"--window-size={width},{height}", profile):
        options.add_argument(switch)
    os.environ.setdefault("SE_OFFLINE", "true")  # both programs are here: nothing to fetch
    window = Chrome(options=options, service=Service(driver))
    try:
        yield Browser(window, folder)
    finally:
        window.quit()
