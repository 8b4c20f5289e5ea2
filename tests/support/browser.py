"""A real browser for tests: headless Chromium, driven over a pipe in its own DevTools protocol.

A pipe needs no port and no package: messages are JSON, each ended by a byte of nought.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


def find():
    """The path of a Chromium, or None. CHROMIUM names one that is not on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. What the page complains of is kept in `complaints`."""

    def __init__(self, program, profile):
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()
        # The browser reads at 3 and writes at 4; whoever starts it puts them there.
        start = (
            f'exec "$0" --headless --remote-debugging-pipe --no-sandbox --disable-gpu '
            f'--disable-dev-shm-usage --hide-scrollbars --user-data-dir="$1" about:blank '
            f"3<&{to_browser} 4>&{to_us}"
        )
        self.process = subprocess.Popen(
            ["bash", "-c", start, program, str(profile)],
            pass_fds=(to_browser, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        self.write, self.read, self.rest = from_us, from_browser, b""
        self.number, self.session, self.loaded, self.complaints = 0, None, False, []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, seconds=60, **params):
        """The answer to one command; events that come before it are noted."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while (answer := self._next(seconds)).get("id") != self.number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self, seconds):
        until = time.monotonic() + seconds
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {seconds} s")
            more = os.read(self.read, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif method in ("Log.entryAdded", "Runtime.consoleAPICalled"):
            self.complaints.append(str(params.get("entry", params)))
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("data:", "file:")):
                self.complaints.append(f"asked for {url}")

    def open(self, file, width, dark=False, height=900):
        """Show a file in a window of this width."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
             mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self.loaded = False
        self("Page.navigate", url=f"file://{file}")
        while not self.loaded:
            self._note(self._next(60))

    def ask(self, expression):
        """The value of an expression of JavaScript."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self):
        """All of the page as PNG."""
        shot = self("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def close(self):
        os.close(self.write)  # a browser whose pipe is closed goes
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read)
