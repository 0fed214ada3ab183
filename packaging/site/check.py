#!/usr/bin/env python3
"""Fails if a built page would load anything from another host: a script, style, font, picture or frame."""

import pathlib
import re
import sys
from html.parser import HTMLParser

# Links of these kinds only name a place.
NAMES = {"canonical", "next", "prev", "alternate"}


class Loads(HTMLParser):
    """Collects the addresses that a browser would load to show a page."""

    def __init__(self):
        super().__init__()
        self.addresses, self.in_style = [], False

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "link" and not NAMES & set((values.get("rel") or "").split()):
            self.addresses.append(values.get("href") or "")
        elif tag != "a":
            self.addresses += [values.get(name) or "" for name in ("src", "srcset", "poster", "data")]
        self.addresses += in_css(values.get("style") or "")
        self.in_style = tag == "style"

    def handle_data(self, data):
        if self.in_style:
            self.addresses += in_css(data)


def in_css(text):
    return re.findall(r"""url\(\s*['"]?([^'")]+)""", text) + re.findall(r"""@import\s+['"]([^'"]+)""", text)


def loads(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        return in_css(text)
    page = Loads()
    page.feed(text)
    return page.addresses


def main(site):
    for bad in ('<script src="https://x/y.js"></script>', '<link rel="stylesheet" href="//x/y.css">'):
        page = Loads()
        page.feed(bad)
        assert foreign(page.addresses), f"the check finds nothing in {bad}"
    files = [path for ending in ("*.html", "*.css") for path in sorted(pathlib.Path(site).rglob(ending))]
    wrong = [f"{path}: loads {address}" for path in files for address in foreign(loads(path))]
    if len(files) < 30:
        wrong.append(f"{site}: only {len(files)} pages and styles: is this the site?")
    print("\n".join(wrong) or f"{len(files)} pages and styles load nothing from elsewhere")
    return 1 if wrong else 0


def foreign(addresses):
    return [address for address in addresses if re.match(r"\s*([a-z]+:)?//", address)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
