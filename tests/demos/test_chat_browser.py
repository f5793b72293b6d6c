"""The video chat and live speech tabs in a browser, with a microphone that plays a recording."""

import threading
import time
from pathlib import Path

PATIENCE = 120_000  # milliseconds, for a busy machine


def opened(browser, url, tab, width=1280):
    """A new visitor's page, and the panel of a tab."""
    page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    page.get_by_role("tab", name=tab, exact=True).click()
    return page, page.locator("[role=tabpanel]:visible")


def press(panel, name):
    panel.get_by_role("button", name=name, exact=True).click()


def upload(page, panel, path, place):
    """Choose a file, and wait until the server has it."""
    with page.expect_response(lambda answer: "/upload" in answer.url and answer.request.method == "POST"):
        panel.locator("input[type=file]").nth(place).set_input_files(str(path))
    page.wait_for_timeout(500)


def test_the_chat_tab_compares_reports_and_survives_a_wrong_upload(browser, url, tmp_path):
    wrong = tmp_path / "wrong.mp4"
    wrong.write_text("this is no video " * 100)
    page, panel = opened(browser, url, "Video chat", width=390)
    upload(page, panel, wrong, 0)
    press(panel, "Accelerated")
    page.get_by_text("wrong.mp4 is no video file").wait_for()
    assert "Traceback" not in page.content() and str(tmp_path) not in page.content()
    panel.get_by_label("Clear").or_(panel.get_by_label("Remove")).first.click()
    panel.locator(".cards button").nth(1).click()  # starts the comparison too
    panel.locator("video[src*=clip-2]").first.wait_for()
    panel.locator(".difference").get_by_text("Same answer").wait_for()
    assert "both measured" in panel.locator(".cm-content").first.inner_text()
    assert "clip-2.mp4" in panel.locator(".cm-content").last.inner_text()
    assert panel.locator("img[src*='.webp']").count() == 1, "the kept patches are not shown"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.context.close()


def test_the_speech_tab_shows_words_compares_and_survives_a_wrong_upload(browser, url, recording, tmp_path):
    wrong = tmp_path / "wrong.wav"
    wrong.write_text("this is no sound " * 100)
    page, panel = opened(browser, url, "Speech", width=390)
    upload(page, panel, wrong, 0)
    press(panel, "Accelerated")
    page.get_by_text("wrong.wav is no audio file").wait_for()
    panel.get_by_label("Clear").or_(panel.get_by_label("Remove")).first.click()
    panel.get_by_role("button", name="Beckett").click()  # starts the comparison too
    panel.get_by_text("0:10", exact=True).wait_for()
    panel.get_by_text("the same, event for event").wait_for()
    assert panel.locator(".words").inner_text().count("again.") == 2
    with page.expect_download() as download:
        panel.locator(".file-preview a").first.click()
    assert "Ever tried." in Path(download.value.path()).read_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.context.close()


def test_without_a_microphone_the_page_says_so(browser, url, recording):
    page, panel = opened(browser, url, "Speech")
    press(panel, "Speak")
    panel.get_by_text("upload a recording").or_(panel.get_by_text("allow it for this page")).wait_for()
    page.context.close()


def test_a_double_click_begins_one_recording(browser, url, recording):
    page, panel = opened(browser, url, "Speech")
    asked = panel.get_by_role("button", name="Speak", exact=True).evaluate(
        """(button) => {
          let asked = 0;
          navigator.mediaDevices.getUserMedia = () => { asked += 1; return Promise.reject(new Error("unplugged")); };
          button.click(); button.click();
          return asked;
        }"""
    )
    assert asked == 1
    panel.get_by_text("unplugged").wait_for()
    assert panel.get_by_role("button", name="Speak", exact=True).is_enabled()
    page.context.close()


def test_a_microphone_gives_words_while_they_are_spoken(launched, frame, url, recording):
    fake = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    browser = launched(*fake, f"--use-file-for-fake-audio-capture={recording}")
    page, panel = opened(browser, url, "Speech")
    press(panel, "Speak")
    panel.locator(".words .unstable").first.wait_for(state="attached")
    panel.locator(".words").get_by_text("again", exact=False).first.wait_for()
    press(panel, "End")
    panel.get_by_text("real-time factor").wait_for()
    assert "Ever failed." in panel.locator(".words").inner_text()
    press(panel, "Speak")
    panel.locator(".words").get_by_text("Ever failed.").first.wait_for(state="detached")  # what was said before
    panel.get_by_text("Listening: speak now.").or_(panel.locator(".words .time")).first.wait_for()
    browser.close()  # in the middle: what was held for the visitor must go
    began = time.monotonic()
    while any(thread.name == "mmaccel microphone" for thread in threading.enumerate()):
        assert time.monotonic() - began < 60, "a thread of a visitor who has left is still there"
        time.sleep(0.2)
