# SPDX-License-Identifier: Apache-2.0
"""Whether the built site holds together: `check.py SITE` names every link and anchor that leads nowhere, every place that is there
twice, everything that a page would ask of another machine, every picture that a telephone shows too small, every page that the
search or a search engine does not know, and a playground of another version."""

import base64
import collections
import html.parser
import json
import pathlib
import re
import sys
import urllib.parse
import zlib

ROOT = pathlib.Path(__file__).parents[2]
OWN = ("playground.html", "404.html")  # the first is heed's own page, the second is for a server's root
# Tags whose address a browser fetches by itself.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href", "object": "data"}


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched, self.small = collections.Counter(), [], [], []
        self.around, self.description = [], ""  # the <a> and <div> that are open
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.update({values[name] for name in ("id", *["name"] * (tag == "a")) if values.get(name)})
        if tag in ("a", "div"):
            self.around.append(values)
        elif tag == "img" and not any("href" in each or each.get("class") == "drawing-frame" for each in self.around):
            self.small.append(values["src"])
        elif tag == "meta" and values.get("name") == "description":
            self.description = values["content"]
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in FETCHED and values.get(FETCHED[tag]) and values.get("rel") != "canonical":
            self.fetched.append(values[FETCHED[tag]])

    def handle_endtag(self, tag):
        if tag in ("a", "div"):
            self.around.pop()


def is_elsewhere(address):
    return address.startswith("//") or urllib.parse.urlsplit(address).scheme in ("http", "https")


def problems_of(site):
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name not in OWN}
    for path, page in sorted(pages.items()):
        here = path.relative_to(site)
        for address in page.fetched:
            if is_elsewhere(address):
                yield f"{here}: fetches {address}"
            elif not address.startswith("data:") and not (path.parent / urllib.parse.unquote(re.split("[?#]", address)[0])).exists():
                yield f"{here}: {address} is not there"
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{here}: {link} leads nowhere"
            elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in {*pages[target].ids, "__top"}:
                yield f"{here}: {link} names a place that is not there"
        for place, count in page.ids.items():
            if count > 1:
                yield f"{here}: has {count} places {place}"
        for picture in page.small:
            yield f"{here}: {picture} neither scrolls nor leads to its full size"
        if page.description == pages[site / "index.html"].description and here.parts[0] not in ("index.html", "404.html", "source"):
            yield f"{here}: has the description of the site"
    for path in site.rglob("*.css"):
        if "url(http" in path.read_text().replace('"', "").replace("'", ""):
            yield f"{path.relative_to(site)}: fetches what lies elsewhere"
    known = {entry["location"].split("#")[0] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    for path in pages:
        here = path.relative_to(site).as_posix()
        if here not in known and here != "404.html" and not (here == "index.html" and "" in known):
            yield f"{here}: the search does not know it"


def problems_of_playground(site):
    """Its module is heed as it was when somebody compiled it."""
    text = (site / "playground.html").read_text()
    version = ".".join(re.findall(r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (ROOT / "include/heed/version.hpp").read_text()))
    module = zlib.decompress(base64.b64decode(re.search(r'id="heed">([^<]*)<', text)[1]), -15)
    if b"\0" + version.encode() + b"\0" not in module:
        yield f"playground.html: is not heed {version}: build the preset wasm, and docs/pictures/make.py makes it again"
    if 'href="index.html"' not in text:
        yield "playground.html: does not lead back"


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    problems = [*problems_of(site), *problems_of_playground(site)]
    for problem in problems:
        print(problem)
    count = len(list(site.rglob("*.html")))
    print(f"{count} pages, {len(problems)} problems")
    return 1 if problems or not count else 0


if __name__ == "__main__":
    sys.exit(main())
