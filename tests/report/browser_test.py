"""The report works in a real browser, from disk and without a network.

usage: browser_test.py FAKE_RUN_TOOL [FOLDER_FOR_SCREENSHOTS]
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
PATIENCE = 60  # seconds until a condition must hold: the machine may be busy


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select, WebDriverWait
except ImportError as error:
    skip(f"{error}. Install it: {sys.executable} -m pip install selenium")

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    skip("no chromium with chromedriver. On Debian install the packages chromium and chromium-driver.")
if "/snap/" in os.path.realpath(CHROMIUM):
    skip("chromium is a snap, which a test cannot drive.")

CANVAS_SUM = """
const canvas = document.querySelector(arguments[0]);
if (!canvas || canvas.width === 0) return null;
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
let sum = 7;
const colours = new Set();
for (let i = 0; i < pixels.length; i += 4) {
  const value = (pixels[i] << 16) | (pixels[i + 1] << 8) | pixels[i + 2] | (pixels[i + 3] > 0 ? 1 << 24 : 0);
  sum = (sum * 31 + value) % 1000000007;
  if (colours.size < 50) colours.add(value);
}
return [sum, colours.size];
"""


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


class Page:
    """A report in a browser of its own."""

    def __init__(self, profile):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--disable-gpu", "--window-size=1280,1000", f"--user-data-dir={profile}"):
            options.add_argument(argument)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.set_page_load_timeout(PATIENCE)

    def command(self, name, **arguments):
        return self.driver.execute_cdp_cmd(name, arguments)

    def set_scheme(self, scheme):
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def set_width(self, width, mobile=False):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=mobile)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def wait(self, condition, message):
        try:
            return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1).until(lambda _: condition())
        except Exception as error:  # selenium's timeout says nothing of what was awaited
            sys.exit(f"FAILED: {message} ({type(error).__name__})")

    def drawn(self, selector):
        """The sum of a canvas's pixels, once it shows more than one colour."""

        def look():
            seen = self.script(CANVAS_SUM, selector)
            return seen[0] if seen and seen[1] > 1 else None

        return self.wait(lambda: look(), f"{selector} is blank")

    def wait_for_change(self, selector, before, what):
        def look():
            seen = self.script(CANVAS_SUM, selector)
            return seen and seen[0] != before and seen[0]

        return self.wait(lambda: look(), f"{what} did not change {selector}")

    def click(self, element):
        self.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def shoot(self, path):
        height = self.script("return document.documentElement.scrollHeight")
        width = self.script("return document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 8000), "scale": 1}
        picture = self.command("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def check_quiet(self):
        """Nothing complained, nothing was asked for but the page itself."""
        own = "willReadFrequently"  # a hint about this test's own looking at pixels
        complaints = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING") and own not in entry["message"]]
        check(not complaints, f"the console says {complaints}")
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            # Other documents are the browser's own start page.
            if message["method"] == "Network.requestWillBeSent" and message["params"]["documentURL"] == self.url:
                url = message["params"]["request"]["url"]
                self.requests.append(url)
                check(url == self.url or url.startswith(("data:", "blob:")), f"the page asked for {url}")

    def open(self, path, canvas):
        """Waits until the canvas is drawn."""
        self.url = Path(path).as_uri()
        self.requests = []
        self.driver.get(self.url)
        self.drawn(canvas)

    def close(self):
        self.driver.quit()


def test_slider(page):
    first = page.drawn("#iterate")
    slider = page.find("#step")
    page.click(page.find("#emerge-title"))
    slider.send_keys(Keys.END)
    last = page.wait_for_change("#iterate", first, "the slider")
    check(page.find("#iterate-caption").text.startswith("after "), "the caption does not say how many steps")
    check(last == page.drawn("#original"), "the last iterate of a guarded network is not the original")
    slider.send_keys(*[Keys.ARROW_LEFT] * 6)  # the last few look the same
    page.wait_for_change("#iterate", last, "an arrow key")
    slider.send_keys(Keys.HOME)
    page.wait(lambda: page.script(CANVAS_SUM, "#iterate")[0] == first, "the slider does not come back to the start")
    check(page.find("#reading-residual").text not in ("", "–"), "no residual is shown")


def test_play(page):
    before = page.drawn("#iterate")
    page.click(page.find("#play"))
    check(page.find("#play").get_attribute("aria-label") == "Pause", "the button does not offer to pause")
    page.wait_for_change("#iterate", before, "playing")
    page.wait(lambda: page.find("#play").get_attribute("aria-label") == "Play", "playing does not end")
    page.find("#step").send_keys(Keys.HOME)


def test_choices(page):
    before = page.drawn("#iterate")
    page.click(page.find("#kind label:nth-of-type(3)"))
    before = page.wait_for_change("#iterate", before, "another kind")
    check("dot-product" in page.find("#emerge .chosen").text, "the chosen kind is not named")
    page.click(page.find("#thumbs button:nth-of-type(2)"))
    before = page.wait_for_change("#iterate", before, "another image")
    Select(page.find("#view")).select_by_visible_text("synthetic 16x16")
    before = page.wait_for_change("#iterate", before, "another data set")
    Select(page.find("#view")).select_by_visible_text("CIFAR-10")
    page.wait_for_change("#iterate", before, "the first data set")
    page.find("#step").send_keys(Keys.END)
    page.wait(lambda: page.script(CANVAS_SUM, "#iterate")[0] == page.script(CANVAS_SUM, "#original")[0], "guarded does not come back")
    chart = page.drawn("#convergence")
    Select(page.find("#variant")).select_by_visible_text("paper")
    page.find("#step").send_keys(Keys.END)
    page.wait(lambda: page.script(CANVAS_SUM, "#iterate")[0] != page.script(CANVAS_SUM, "#original")[0], "paper comes back")
    page.wait_for_change("#convergence", chart, "another variant")
    before = page.drawn("#iterate")
    page.click(page.find("#solver label:nth-of-type(3)"))
    page.find("#step").send_keys(Keys.END)
    page.wait_for_change("#iterate", before, "another solver")
    page.click(page.find(".score"))  # back to the first network
    page.wait(lambda: "guarded, gaussian" in page.find("#emerge .chosen").text, "the matrix does not choose")


def test_charts(page):
    for chart in ("#convergence", "#constants", "#loss", "#largest"):
        page.drawn(chart)
    check(len(page.all("#convergence-facts li")) == 3, "there is not one line per solver")
    page.wait(lambda: len(page.all("#errors canvas")) == 24, "there is not one error map per kind and image")
    page.drawn("#errors canvas")


def test_attention(page):
    check(len(page.all("#maps canvas")) == 4, "there is not one map per kind")
    before = page.drawn("#maps canvas")
    box = page.find("#ask")
    page.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", box)
    ActionChains(page.driver).move_to_element_with_offset(box, -box.size["width"] // 3, -box.size["height"] // 3).perform()
    before = page.wait_for_change("#maps canvas", before, "pointing at a pixel")
    text = page.find("#ask-caption").text
    box.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.wait_for_change("#maps canvas", before, "an arrow key")
    check(page.find("#ask-caption").text != text, "the caption does not follow the arrow keys")


def check_looks(page, canvas):
    light = page.script("return getComputedStyle(document.body).backgroundColor")
    chart = page.drawn(canvas)
    page.set_scheme("dark")
    page.wait(lambda: page.script("return getComputedStyle(document.body).backgroundColor") != light, "dark mode changes nothing")
    page.wait_for_change(canvas, chart, "dark mode")
    page.set_scheme("light")
    for width in (320, 360, 390, 768, 1280, 1920):
        page.set_width(width)
        page.wait(lambda: page.script("return innerWidth") == width, f"the window is not {width} wide")
        # Charts follow the window a moment later; a page that is too wide stays so.
        page.wait(lambda: page.script("return document.documentElement.scrollWidth") <= width, f"the page stays wider than {width} pixels")


def test_looks(page):
    check_looks(page, "#constants")


def test_labels(page):
    nameless = page.script("""
      return [...document.querySelectorAll('button, input, select, canvas[role]')].filter((part) => part.offsetParent !== null && !(
        part.getAttribute('aria-label') || part.textContent.trim() || (part.labels && part.labels.length))).map((part) => part.outerHTML);""")
    check(not nameless, f"these have no name: {nameless}")
    check(page.script("return document.querySelectorAll('[onclick],[onload],[onerror]').length") == 0, "there are inline handlers")


def test_copy(page):
    button = page.find(".copy")
    page.click(button)
    page.wait(lambda: button.text != "Copy", "the copy button does nothing")


def shown_samples(page):
    return page.script("return [...document.querySelectorAll('.sample img')].filter((picture) => picture.offsetParent !== null).map((picture) => Number(picture.dataset.step))")


def test_density_charts(page):
    for chart in ("#by-steps", "#by-time", "#gradient", "#largest"):
        page.drawn(chart)


def test_density_samples(page):
    last = shown_samples(page)
    check(len(last) == len(page.all(".sample")), "there is not one picture per run")
    page.wait(lambda: page.script("return [...document.images].every((picture) => picture.complete && picture.naturalWidth > 0)"), "a picture is broken")
    nameless = page.script("return [...document.images].filter((picture) => !picture.alt).length")
    check(nameless == 0, f"{nameless} pictures have no text")
    slider = page.find("#when")
    slider.send_keys(Keys.HOME)
    page.wait(lambda: max(shown_samples(page)) < min(last), "the slider does not show earlier samples")
    check("After 750 steps" in page.find("#when-caption").text, "the caption does not say after how many steps")
    slider.send_keys(Keys.END)
    page.wait(lambda: shown_samples(page) == last, "the slider does not come back to the last samples")


def test_density_looks(page):
    check_looks(page, "#by-steps")


def test_plane(page):
    check(not page.find("#largest-card").is_displayed(), "there is a chart of the attention of a flow without any")
    check(len(shown_samples(page)) == 1, "there is no picture of the density")


def test_study(page):
    for chart in ("#differences", "#by-steps", "#by-time"):
        page.drawn(chart)
    check("gaussian gains" in page.find("h1").text, "the page does not begin with the answer")
    check_looks(page, "#differences")


def test_detection_charts(page):
    for chart in ("#loss", "#held-out", "#largest", "#f-curve", "#e-curve"):
        page.drawn(chart)
    before = page.drawn("#held-out")
    page.click(page.find("#measure label:nth-of-type(4)"))
    page.wait_for_change("#held-out", before, "another measure")
    slider = page.find("#when")
    values = [part.text for part in page.all("#moment dd")]
    check(len(values) == 6 and "–" not in values, f"loss, constant and four measures at the end: {values}")
    before = page.drawn("#loss")
    slider.send_keys(Keys.HOME)
    page.wait(lambda: [part.text for part in page.all("#moment dd")] != values, "the slider changes no figure")
    page.wait_for_change("#loss", before, "the slider")
    check("After 0.2 epochs" in page.find("#when-caption").text, "the caption does not say after how many epochs")
    slider.send_keys(Keys.END)
    page.wait(lambda: [part.text for part in page.all("#moment dd")] == values, "the slider does not come back to the end")


def test_found(page):
    check(len(page.all("#layers button")) == 4, "image, truth, map and overlay are not there")
    before = page.drawn("#picture")
    box = page.find("#picture-box")
    seen = {before}
    for _ in range(3):
        page.click(box)
        before = page.wait_for_change("#picture", before, "a click")
        seen.add(before)
    check(len(seen) == 4, "a click does not lead through all four")
    box.send_keys(Keys.ARROW_DOWN)
    before = page.wait_for_change("#picture", before, "an arrow key")
    page.click(page.find("#layers button:nth-of-type(2)"))
    before = page.wait_for_change("#picture", before, "choosing the truth")
    check("truth" in page.find("#picture-caption").text, "the caption does not say what is shown")
    box.send_keys(Keys.ARROW_RIGHT)
    before = page.wait_for_change("#picture", before, "the next image")
    page.wait(lambda: "image 2" in page.find("#found-section .chosen").text, "the chosen image is not named")
    page.click(page.find("#thumbs button:nth-of-type(1)"))
    page.wait_for_change("#picture", before, "another image")


def test_detection_attention(page):
    check(len(page.all("#maps canvas")) == 4, "there is not one map per level")
    before = page.drawn("#maps canvas")
    box = page.find("#ask")
    page.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", box)
    ActionChains(page.driver).move_to_element_with_offset(box, -box.size["width"] // 3, -box.size["height"] // 3).perform()
    before = page.wait_for_change("#maps canvas", before, "pointing at a pixel")
    text = page.find("#ask-caption").text
    check("asking: row" in text, "the caption does not say what is asked")
    box.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    page.wait_for_change("#maps canvas", before, "an arrow key")
    check(page.find("#ask-caption").text != text, "the caption does not follow the arrow keys")


def test_undone(page):
    check(page.drawn("#undone") == page.drawn("#before"), "the features do not come back")
    check(page.drawn("#after") != page.drawn("#before"), "the block does nothing")
    before = page.drawn("#before")
    page.click(page.find("#level label:nth-of-type(2)"))
    page.wait_for_change("#before", before, "another level")
    check("10" in page.find("#reading-largest").text, "the largest difference is not told")
    check(page.find("#reading-undone").text == "32 of 32", "how many images were undone is not told")


def test_detection_looks(page):
    check_looks(page, "#loss")


def test_networks(page):
    check(not page.find("#undone-section").is_displayed() or "InvDot" in page.find("#undone-section .chosen").text, "features of another network")
    network = Select(page.find("#network"))
    check(len(network.options) == 3 and len(page.all("#others button")) == 3, "there are not three networks to choose from")
    network.select_by_visible_text("InvDot")
    page.wait(lambda: page.find("#undone-section").is_displayed(), "the features of the invertible network are not shown")
    before = page.drawn("#picture")
    page.click(page.find("#others button:nth-of-type(3)"))
    page.wait_for_change("#picture", before, "another network")
    page.wait(lambda: not page.find("#attention-section").is_displayed(), "the network without attention attends")
    network.select_by_visible_text("Gaus")
    page.wait(lambda: "a place on the object" in page.find("#ask-caption").text, "an older run does not show what it has")
    page.drawn("#maps canvas")


RECONSTRUCTION = (test_slider, test_play, test_charts, test_attention, test_choices, test_looks, test_labels, test_copy)
DENSITY = (test_density_charts, test_density_samples, test_density_looks, test_labels, test_copy)
DETECTION = (test_detection_charts, test_found, test_detection_attention, test_undone, test_detection_looks, test_labels, test_copy)
PAGES = {"small": ("#iterate", RECONSTRUCTION), "density": ("#by-steps", DENSITY), "densities": ("#by-steps", DENSITY),
         "plane": ("#by-steps", (test_plane, test_density_samples, test_labels)), "study": ("#differences", (test_study, test_labels, test_copy)),
         "detection": ("#picture", DETECTION), "detections": ("#picture", (test_networks, test_detection_looks, test_labels, test_copy))}


def main():
    tool = sys.argv[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = Page(Path(folder) / "profile")
        try:
            for name, (canvas, tests) in PAGES.items():
                run = Path(folder) / name
                subprocess.run([tool, run, name], check=True)
                page.set_scheme("light")
                page.set_width(1280)
                page.open(run / "report.html", canvas)
                for test in tests:
                    start = time.monotonic()
                    test(page)
                    page.check_quiet()
                    print(f"{name}, {test.__name__}: {time.monotonic() - start:.1f} s", flush=True)
                check(page.url in page.requests, "the log of requests does not hold the page itself: it cannot be trusted")
                if len(sys.argv) > 2:
                    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
                        page.set_scheme(scheme)
                        page.set_width(width, mobile=width < 600)
                        time.sleep(1)
                        page.shoot(Path(sys.argv[2]) / f"{name}-{width}-{scheme}.png")
        finally:
            page.close()
    print("the reports work in a browser")


if __name__ == "__main__":
    main()
