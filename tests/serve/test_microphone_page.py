"""The page that listens: a browser with a microphone that plays a recording."""

import re
import time

import pytest
from listening import listening

from mmaccel import speech
from mmaccel.speech.serving.listening import Listening
from mmaccel.speech.serving.transcriptions import ENDPOINT

SPOKEN = re.compile("ever|tried|failed|matter|again|better", re.IGNORECASE)  # whichever is shown before its end


@pytest.fixture(scope="module")
def page(launched, listener, recording):
    """Its words are shown at the first hypothesis: short phrases end before two agree."""
    quick = speech.StreamingRecognizer(listener.opened.adapter, policy=speech.LocalAgreement(1), batched=True)
    fake = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with listening(ENDPOINT("moonshine-tiny", quick, quick), key="right") as (_, address):
        browser = launched(*fake, f"--use-file-for-fake-audio-capture={recording}")
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
    page.locator("#now").get_by_text(SPOKEN).wait_for()
    page.locator("#text p").get_by_text("tried").first.wait_for()
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


def test_a_page_that_gets_no_microphone_says_why(page):
    """As over http, but from localhost."""
    page.evaluate("() => { Object.defineProperty(navigator, 'mediaDevices', { value: undefined }); }")
    page.get_by_role("button", name="Listen").click()
    page.get_by_text("to https pages and to localhost only").wait_for()


# As Firefox does: a microphone goes only into a context of its own rate.
STRICT = """() => {
  const own = new AudioContext().sampleRate, connect = AudioContext.prototype.createMediaStreamSource;
  AudioContext.prototype.createMediaStreamSource = function (stream) {
    if (this.sampleRate !== own) throw new Error("AudioContexts with different sample-rate");
    return connect.call(this, stream);
  };
  return own;
}"""


def test_the_microphone_keeps_its_rate_and_stop_waits_for_the_last_words(page, monkeypatch):
    end = Listening.end

    def late(listening):
        time.sleep(5)
        return end(listening)

    page.reload()
    assert page.evaluate(STRICT) != 24_000
    page.get_by_label("API key").fill("right")
    page.get_by_role("button", name="Listen").click()
    page.locator("#now").get_by_text(SPOKEN).wait_for()
    monkeypatch.setattr(Listening, "end", late)
    before = page.locator("#text p").count()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Listen").wait_for()
    assert page.locator("#text p").count() > before and not page.locator("#error").inner_text()
