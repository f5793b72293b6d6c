"""The page that listens: a browser with a microphone that plays a recording."""

import shutil

import pytest
from expected_skips import BROWSERS
from listening import listening

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")


@pytest.fixture(scope="module")
def page(listener, recording):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium or Chrome on the PATH")
    fake = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    heard = f"--use-file-for-fake-audio-capture={recording}"
    with (
        listening(listener, key="right") as (_, address),
        sync_api.sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS, *fake, heard])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(address)
        yield page
        browser.close()


def test_words_come_while_they_are_spoken_and_a_wrong_key_is_told(page):
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.get_by_role("button", name="Listen").click()
    page.get_by_text("is the key right").wait_for()
    page.get_by_label("API key").fill("right")
    page.get_by_role("button", name="Listen").click()
    page.locator("#now").get_by_text("ever", exact=False).wait_for()
    page.locator("#text p").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    assert "tried" in page.locator("#text").inner_text().lower() and not problems
    page.get_by_role("button", name="Listen").wait_for()


def test_a_double_click_listens_once(page):
    asked = page.evaluate(
        """() => {
          let asked = 0;
          navigator.mediaDevices.getUserMedia = () => { asked += 1; return Promise.reject(new Error("unplugged")); };
          const button = document.getElementById("listen");
          button.click(); button.click();
          return asked;
        }"""
    )
    assert asked == 1
    page.get_by_text("unplugged").wait_for()
    assert page.get_by_role("button", name="Listen").is_enabled()
