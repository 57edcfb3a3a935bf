"""Pages in headless Chromium: a script runs in a page, and its result comes back."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Seconds for one page on a busy machine.
_TIMEOUT = 240
# Collects errors from the first line of the page on.
_WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => problems.push("blocked " + event.blockedURI));
</script>"""


def find_chromium() -> str:
    """The path of Chromium; without it the test is skipped."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs Chromium: on Debian and Ubuntu, `apt install chromium`")
    return found


@dataclass(frozen=True)
class Visit:
    """What a script in a page returned, what went wrong in the page, and what was written to the console."""

    result: Any
    problems: list[str]
    console: list[str]


def visit(page: str, script: str, *, dark: bool = False) -> Visit:
    """Open a page and call the body of a function in it, after its own scripts have run."""
    chromium = find_chromium()
    call = f"""<script>
    const done = document.createElement("pre");
    done.id = "result";
    let result = null;
    try {{ result = (() => {{ {script} }})(); }} catch (error) {{ problems.push("script: " + error); }}
    done.textContent = JSON.stringify({{ result: result === undefined ? null : result, problems }});
    document.body.append(done);
    </script>"""
    page = page.replace("<title>", f"{_WATCH}<title>", 1).replace("</body>", f"{call}</body>", 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(page, encoding="utf-8")
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += [f"--user-data-dir={folder}/profile", "--enable-logging=stderr", "--window-size=1280,1000"]
        command += ["--blink-settings=preferredColorScheme=0"] if dark else []
        done = subprocess.run(
            [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page has no result:\n{done.stderr[-2000:]}"
    answer = json.loads(html.unescape(found[1]))
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Visit(answer["result"], answer["problems"], console)
