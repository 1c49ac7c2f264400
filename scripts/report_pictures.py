"""Take the pictures of docs/report.md from a report that `gatewise run` wrote (needs `make browser`).

python scripts/report_pictures.py runs/smollm2-135m-ioi-eap-500/report.html a23.h3
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "img"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("node", help="a head to show alone")
    arguments = parser.parse_args()
    address = arguments.report.resolve().as_uri()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        shots = [  # file, width, height, colours, state, what is at the top of the picture
            ("report-gates.png", 1400, 1290, "light", "", "body"),
            ("report-circuit.png", 1400, 740, "light", "", "#circuit .drawing"),
            ("report-node.png", 1400, 780, "dark", f"node={arguments.node}&prompt=2", "#circuit .drawing"),
            ("report-phone.png", 390, 844, "light", "", "#circuit .drawing"),
        ]
        for name, width, height, scheme, state, top in shots:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(f"{address}#{state}")
            page.wait_for_timeout(600)
            page.evaluate("(top) => scrollTo(0, document.querySelector(top).getBoundingClientRect().top - 16)", top)
            page.wait_for_timeout(400)
            page.screenshot(path=FOLDER / name)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
