"""A real browser without a window, spoken to over two pipes by the DevTools protocol: no port, no driver."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from contextlib import contextmanager

LIMIT_S = 60
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # it has none as root, as in CI; the page is our own
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-extensions",
    "--force-color-profile=srgb",
)


def find_chromium():
    return next((path for path in map(shutil.which, NAMES) if path), None)


@contextmanager
def started_browser(profile):
    """A browser that ends with the block. It reads commands from its file 3 and answers on its file 4."""
    (to_browser, commands), (answers, from_browser) = high_pipe(), high_pipe()
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pipes = [(os.POSIX_SPAWN_DUP2, to_browser, 3), (os.POSIX_SPAWN_DUP2, from_browser, 4)]
    words = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = os.posix_spawn(words[0], words, os.environ, file_actions=[*quiet, *pipes])
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(commands, answers)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(commands)
        os.close(answers)


def high_pipe():
    """Reading and writing end, out of the way of the numbers that the browser wants."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high


class Browser:
    """Sends commands, waits for their answers, keeps the events that come between."""

    def __init__(self, commands, answers):
        self._commands, self._answers = commands, answers
        self._number, self._rest, self.events = 0, b"", []

    def call(self, method, session=None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait_for(self, method, session):
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    return event["params"]
            self.events.append(self._read())

    def _read(self):
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._answers, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    @contextmanager
    def opened(self, path, *, width=1280, height=900, dark=False):
        """A page in a tab of its own, loaded. `path` is a file, or an address."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        tab.call("Emulation.setEmulatedMedia", features=features)
        tab.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        self.wait_for("Page.loadEventFired", session)
        try:
            yield tab
        finally:
            self.call("Target.closeTarget", targetId=target)


class Tab:
    """One page: evaluates, clicks, types, and tells what went wrong in it."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression):
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def count(self, selector):
        return self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    def point_at(self, selector):
        """Moves the mouse to the middle of an element, as a person would; scrolls to it first."""
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        # The page hides what is pointed at when it scrolls: let that pass first.
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector):
        x, y = self.point_at(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def choose(self, selector, value):
        """An option of a <select>: its menu is the system's own, and not the page's."""
        self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
            " e.dispatchEvent(new Event('change')); })()"
        )

    def complaints(self, own="file:"):
        """Errors and warnings of the console, exceptions, dialogs, and requests to anything but the page itself."""
        self.evaluate("1")  # what happened before this has been told
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            method, details = event["method"], event["params"]
            if method in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
                found.append(json.dumps(details)[:500])
            elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(details["args"])[:500])
            elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                found.append(details["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not details["request"]["url"].startswith((own, "data:")):
                found.append(f"asked for {details['request']['url']}")
        return found

    def screenshot(self, path, *, whole=True):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))
