"""A real browser to look at a page with: chromium, spoken to over two pipes (`--remote-debugging-pipe`)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 60.0
_QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


def found() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One tab. Keeps what the page asked the network for and what it wrote to the console."""

    def __init__(self, requests: int, answers: int) -> None:
        self._out, self._in = requests, answers
        self._buffer = b""
        self._number = 0
        self._tab: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def open(self, url: str, width: int = 1200, scheme: str = "light") -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.requests.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + SECONDS
        while self.js("document.readyState") != "complete" or self.js("location.href") != url:
            assert time.monotonic() < deadline, f"{url} did not load"
            time.sleep(0.01)

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        text = "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            words = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **words)

    def picture(self) -> bytes:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._tab is not None:
            message["sessionId"] = self._tab
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._event(answer.get("method", ""), answer.get("params", {}))

    def _event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(params))

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 16) if ready else b""
            if not chunk:
                raise RuntimeError("the browser does not answer")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """A browser of its own, ended with the block. Chromium reads from descriptor 3 and answers on 4."""
    path = found()
    assert path is not None
    theirs, requests = os.pipe()
    answers, ours = os.pipe()
    # The shell puts the pipes where chromium looks for them; what it inherits beyond is passed on as it is.
    start = f'exec "$0" "$@" 3<&{theirs} 4>&{ours}'
    process = subprocess.Popen(
        ["bash", "-c", start, path, *_QUIET, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(theirs, ours), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.close(ours)
    try:
        browser = Browser(requests, answers)
        yield browser
        browser._tab = None
        browser.call("Browser.close")
    finally:
        os.close(requests)
        os.close(answers)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
