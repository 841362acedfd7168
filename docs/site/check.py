# SPDX-License-Identifier: Apache-2.0
"""Whether the built site holds together: `check.py SITE` names every link and anchor that leads nowhere, everything that a
page would ask of another machine, and every page that the search does not know."""

import html.parser
import json
import pathlib
import sys
import urllib.parse

OWN = ("playground.html", "404.html")  # the first is heed's own page, the second is for a server's root
# Tags whose address a browser fetches by itself.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href", "object": "data"}


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in FETCHED and values.get(FETCHED[tag]) and values.get("rel") != "canonical":
            self.fetched.append(values[FETCHED[tag]])


def is_elsewhere(address):
    return address.startswith("//") or urllib.parse.urlsplit(address).scheme in ("http", "https")


def problems_of(site):
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name not in OWN}
    for path, page in sorted(pages.items()):
        here = path.relative_to(site)
        for address in page.fetched:
            if is_elsewhere(address):
                yield f"{here}: fetches {address}"
            elif not address.startswith("data:") and not (path.parent / urllib.parse.unquote(address.split("?")[0])).exists():
                yield f"{here}: {address} is not there"
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{here}: {link} leads nowhere"
            elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].ids | {"__top"}:
                yield f"{here}: {link} names a place that is not there"
    for path in site.rglob("*.css"):
        if "url(http" in path.read_text().replace('"', "").replace("'", ""):
            yield f"{path.relative_to(site)}: fetches what lies elsewhere"
    known = {entry["location"].split("#")[0] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    for path in pages:
        here = path.relative_to(site).as_posix()
        if here not in known and here != "404.html" and not (here == "index.html" and "" in known):
            yield f"{here}: the search does not know it"


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    problems = list(problems_of(site))
    for problem in problems:
        print(problem)
    count = len(list(site.rglob("*.html")))
    print(f"{count} pages, {len(problems)} problems")
    return 1 if problems or not count else 0


if __name__ == "__main__":
    sys.exit(main())
