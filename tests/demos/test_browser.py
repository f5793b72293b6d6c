"""The demo app in a browser: each tab generates, compares and reports; visitors never mix, and may leave."""

import io
import logging
import time
import urllib.error
import urllib.request

import pytest
from PIL import Image

from mmaccel.demos import app

PATIENCE = 120_000  # milliseconds, for a busy machine


@pytest.fixture
def visit(browser, url):
    """Opens the page as one more visitor."""
    contexts = []

    def open_page(width=1280, height=900, **more):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **more))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(url)
        page.get_by_role("button", name="Compare").first.wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()


def tab(page, name):
    """The panel of a tab, which is opened, with its advanced settings."""
    page.get_by_role("tab", name=name, exact=True).click()
    panel = page.locator("[role=tabpanel]:visible")
    panel.get_by_text("Advanced", exact=True).click()
    return panel


def say(panel, **fields):
    for label, text in fields.items():
        panel.get_by_label(label.replace("_", " "), exact=False).first.fill(text)


def run(panel, button):
    panel.get_by_role("button", name=button, exact=True).click()


def wait_until(holds, seconds=60.0):
    began = time.monotonic()
    while not holds() and time.monotonic() - began < seconds:
        time.sleep(0.05)
    assert holds()


def test_the_image_tab_generates_compares_and_reports(visit, url):
    page, asked = visit(), []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    panel = tab(page, "Image")
    say(panel, Prompt="red heart", Seed="7", Own_methods="image.ZipAR:window=2")
    run(panel, "Accelerated")
    panel.get_by_text("No speed-up is claimed").wait_for()
    assert "speed-up" not in panel.locator(".cm-content").first.inner_text()
    assert panel.get_by_label("Used seed").input_value() == "7"
    say(panel, Seed="")
    held = []
    page.route("**/file=**", lambda route: held.append(route))
    run(panel, "Compare")
    panel.get_by_text("both measured").wait_for()
    panel.get_by_text("One run of each").wait_for()
    slider = panel.get_by_role("slider", name="Share of the plain picture")
    assert slider.count() == 0, "nothing to move before the picture is there"
    for route in held:
        route.continue_()
    page.unroute("**/file=**")
    slider.focus()
    page.keyboard.press("Home")
    wait_until(lambda: slider.get_attribute("aria-valuenow") == "0")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    wait_until(lambda: slider.get_attribute("aria-valuenow") == "10")
    assert "inset(0px 0px 0px 50%)" not in panel.locator("[data-testid=imageslider-image].fixed").get_attribute("style")
    assert panel.get_by_label("Used seed").input_value().isdigit()
    shown = panel.locator(".cm-content").last.inner_text()
    assert "image.ZipAR(window=2)" in shown and "fast.baseline()" in shown
    wait_until(
        lambda: all(size > 0 for size in page.eval_on_selector_all("img", "all => all.map(i => i.naturalWidth)"))
    )
    foreign = [address for address in asked if not address.startswith((url, "data:", "blob:"))]
    assert foreign == [], "the page asks others for something"


def test_the_video_tab_compares_and_reports_at_phone_width(visit):
    page = visit(width=390, color_scheme="dark")
    panel = tab(page, "Video")
    say(panel, Prompt="rocket moves up", Steps="6", Frames="5", Height="32", Width="32")
    run(panel, "Compare")
    panel.get_by_text("SSIM to the plain clip").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    clip = panel.locator("video")
    wait_until(lambda: clip.evaluate("v => v.videoWidth") > 2 * 250)  # both clips side by side
    assert (
        "frames = fast(prompt='rocket moves up', num_inference_steps=6"
        in panel.locator(".cm-content").last.inner_text()
    )
    comment = panel.locator(".cm-line span", has_text="# measures").screenshot()
    assert Image.open(io.BytesIO(comment)).convert("L").getextrema()[1] >= 155, "it can be read in the dark"


def test_the_canvas_tab_starts_from_a_card_or_an_upload(visit, tmp_path):
    page = visit(width=390, height=844)
    panel = tab(page, "Canvas")
    panel.locator(".gallery button").first.click()
    panel.get_by_text("both measured").wait_for()
    assert panel.locator(".difference p").inner_text().startswith("Same answer, word for word: row")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shown, buttons = (panel.locator(f".plot {part}").bounding_box() for part in ("img", ".icon-button-wrapper"))
    assert buttons["y"] + buttons["height"] <= shown["y"], "they hide no words"
    (tmp_path / "broken.png").write_bytes(b"\x89PNG" + bytes(100))
    panel.get_by_label("Remove Image").first.click()
    panel.locator("input[type=file]").set_input_files(tmp_path / "broken.png")
    panel.locator("img[src*='/file=']").first.wait_for(state="attached")
    run(panel, "Accelerated")
    panel.get_by_text("it is none, or is damaged").wait_for()


def test_two_visitors_get_their_own_pictures(visit):
    prompts = {"red heart": "11", "big pizza on blue": "12"}
    panels = {}
    for prompt, seed in prompts.items():
        panels[prompt] = tab(visit(), "Image")
        say(panels[prompt], Prompt=prompt, Seed=seed, Own_methods="image.ZipAR:window=2")
    for panel in panels.values():  # by keyboard
        panel.get_by_label("Prompt").press("Enter")
    sources = set()
    for prompt, panel in panels.items():
        panel.get_by_text("No speed-up is claimed").wait_for()
        assert panel.get_by_label("Used seed").input_value() == prompts[prompt]
        shown = panel.locator(".cm-content").last.inner_text()
        assert prompt in shown and not any(other in shown for other in prompts if other != prompt)
        sources.add(panel.locator("img[src*='/file=']").first.get_attribute("src"))
    assert len(sources) == 2


def test_bad_input_is_answered_and_the_next_run_works(visit):
    page = visit()
    panel = tab(page, "Image")
    say(panel, Prompt="x" * 100_000)
    run(panel, "Accelerated")
    page.get_by_text("the prompt has 100000 characters").wait_for()
    assert panel.get_by_role("alert").get_by_role("heading").inner_text() == "This cannot be done"
    assert page.locator(".toast-body").count() == 0, "gradio's own notice says Error and no more"
    say(panel, Prompt="red <img src=x onerror='document.title=1'>")
    run(panel, "Accelerated")
    page.get_by_text("does not know").first.wait_for()
    assert page.title() != "1" and page.locator("img[src=x]").count() == 0
    say(panel, Prompt="red heart", Own_methods="image.ZipRA")
    run(panel, "Compare")
    page.get_by_text("did you mean 'image.ZipAR'").wait_for()
    assert "Traceback" not in page.content()
    say(panel, Own_methods="image.ZipAR:window=2")
    run(panel, "Accelerated")
    panel.get_by_text("No speed-up is claimed").wait_for()


def test_who_leaves_frees_the_model(visit, frame, caplog):
    caplog.set_level(logging.INFO, "mmaccel.demo")
    page = visit()
    panel = tab(page, "Video")
    say(panel, Prompt="rocket moves up", Steps="100")
    run(panel, "Compare")
    panel.locator(".race .lane.plain").wait_for()
    panel.get_by_text("First the plain model").wait_for()
    assert frame.runs.count() == 1
    page.close()
    wait_until(lambda: frame.runs.count() == 0)
    assert "a run was stopped by its visitor" in caplog.text
    panel = tab(visit(), "Video")
    say(panel, Prompt="rocket moves up", Steps="4", Frames="5", Height="32", Width="32")
    run(panel, "Accelerated")
    panel.get_by_text("No speed-up is claimed").wait_for()


def test_stop_frees_the_model_and_also_ends_what_waits(visit, frame, caplog):
    caplog.set_level(logging.INFO, "mmaccel.demo")
    panel = tab(visit(), "Video")
    say(panel, Prompt="rocket moves up", Steps="100")
    run(panel, "Compare")
    panel.get_by_text("First the plain model").wait_for()
    run(panel, "Accelerated")
    wait_until(lambda: frame.runs.count() == 2)
    run(panel, "Stop")
    panel.get_by_text("The run was stopped").wait_for()
    wait_until(lambda: frame.runs.count() == 0)
    time.sleep(1)
    assert panel.get_by_text("The run was stopped").is_visible() and panel.locator(".race").count() == 0
    assert "a run was stopped by its visitor" in caplog.text
    say(panel, Steps="4", Frames="5", Height="32", Width="32")
    run(panel, "Accelerated")
    panel.get_by_text("No speed-up is claimed").wait_for()


def test_a_page_starts_small_and_a_card_lets_both_runs_race(visit, frame):
    page = visit(width=390, height=844, reduced_motion="reduce")
    for name in ("Image", "Video", "Video chat", "Speech", "Canvas"):
        page.get_by_role("tab", name=name, exact=True).click()
        panel = page.locator("[role=tabpanel]:visible")
        if name == "Speech" and not panel.get_by_role("button", name="Compare", exact=True).count():
            continue  # without the extra the tab says what is missing
        for button in ("Compare", "Accelerated", "Stop"):
            box = panel.get_by_role("button", name=button, exact=True).bounding_box()
            assert box["y"] + box["height"] < 844, f"{button} of {name} is below the fold"
        assert panel.locator(".cm-content:visible, img[src*='/file=']:visible").count() == 0, "empty results are shown"
    page.get_by_role("tab", name="Image", exact=True).click()
    panel = page.locator("[role=tabpanel]:visible")
    heights = panel.locator(".cards button").evaluate_all("all => all.slice(-2).map(e => e.offsetHeight)")
    assert len(set(heights)) == 1, "cards of one row end at one line"
    panel.get_by_label("Prompt").focus()
    page.keyboard.press("Tab")
    chosen = panel.locator("label", has=page.locator("input:focus"))
    assert chosen.evaluate("e => getComputedStyle(e).outlineStyle") == "solid", "nobody sees where the keyboard is"
    seen = []
    card = panel.get_by_role("button", name="alien on purple")
    card.focus()
    page.keyboard.press("Enter")
    panel.locator(".race .lane").nth(1).wait_for()
    while panel.locator(".verdict").count() == 0:
        seen += panel.locator(".race .said").all_inner_texts()
        page.wait_for_timeout(50)
    assert panel.get_by_label("Prompt").input_value() == "alien on purple"
    assert any("at the pace it just had" in said for said in seen) and any("First the plain" in said for said in seen)
    size = "e => parseFloat(getComputedStyle(e).fontSize)"
    gain = panel.locator(".verdict .gain")
    assert gain.inner_text().split("x ")[-1] in ("faster", "slower", "as fast")
    assert gain.evaluate(size) >= 1.5 * max(
        page.locator("h1, h2, p:not(.gain)").evaluate_all(f"all => all.map({size})")
    )
    top = panel.locator(".verdict").bounding_box()["y"]
    assert top < 844, "the result is below the fold of a phone"
    film, board = (panel.locator(place).bounding_box() for place in (".film", ".verdict"))
    assert film["x"] + film["width"] < board["x"] + board["width"] - 12, "the pictures spill over the edge"
    cells = panel.locator(".film .cells")
    assert cells.count() == 2 and cells.first.locator("i").count() == 256
    assert cells.first.locator("i").first.evaluate("i => getComputedStyle(i).animationName") == "none", "it moves"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_taken_port_is_said(url):
    with pytest.raises(OSError, match="--port"):
        app.launch(port=int(url.rstrip("/").rsplit(":", 1)[1]), wait=False)


def test_no_file_of_the_machine_is_served_and_nothing_is_offered_to_programs(url):
    for path in ("/etc/passwd", __file__):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}gradio_api/file={path}")
        assert refused.value.code in (403, 404)
    with urllib.request.urlopen(f"{url}gradio_api/info") as answer:
        assert b'"named_endpoints":{}' in answer.read().replace(b" ", b"")
