# SPDX-License-Identifier: Apache-2.0
"""What mkdocs asks while it builds the site: pages of the reference, and links that leave docs/.

On a code host a page links to `../include/heed/cache.hpp`, and that works there. On the site the same link leads to the
header's page of the reference, or to a page that shows the file. Drawings become part of the page, and so follow its colours;
charts scroll on narrow screens, and other pictures lead to themselves at their full size.
"""

import pathlib
import posixpath
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[2] / "tests/structure")]
import reference  # noqa: E402
import rules  # noqa: E402

from mkdocs.structure.files import File  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()([^)\s:]+)(?=\))")
DRAWING = re.compile(r"^!\[[^\]]*\]\(([^)]+\.svg)\)$", re.MULTILINE)
PICTURE = re.compile(r"(?<!\[)!\[[^\]]*\]\(([^)]+\.png)\)")
LANGUAGES = {".hpp": "cpp", ".cpp": "cpp", ".h": "c", ".c": "c", ".py": "python", ".pyi": "python", ".txt": "text"}


def outside(page, link):
    """The file of the repository that a link of docs/<page> means, relative to the root, if it lies outside docs/."""
    path, _, anchor = link.partition("#")
    if not path.startswith(".."):
        return None
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), path))
    return None if target.startswith(("docs/", "..")) else (target, anchor)


def page_of(target):
    """Where the site shows a file that lies outside docs/."""
    if target.startswith("include/heed/"):
        return reference.page_of_header(posixpath.basename(target))
    if target == "python/heed/_heed.pyi":
        return "reference/python.md"
    return f"source/{target}" if target.endswith(".md") else f"source/{target}.md"


def relative(page, target, anchor=""):
    path = posixpath.relpath(target, posixpath.dirname(page) or ".")
    return f"{path}#{anchor}" if anchor else path


def shown(target):
    """A file outside docs/ as a page."""
    path, page = ROOT / target, page_of(target)
    if path.is_dir():
        names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir() if entry.name != "__pycache__")
        return f"# {target}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = path.read_text()
    if path.suffix != ".md":
        return f"# {target}\n\n```{LANGUAGES.get(path.suffix, 'text')}\n{text}\n```\n"

    def rebased(found):
        link, _, anchor = found[0].partition("#")
        if not link:
            return found[0]
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(target), link))
        if aim.startswith("docs/"):
            return relative(page, aim.removeprefix("docs/"), anchor)
        return relative(page, page_of(aim), anchor) if (ROOT / aim).exists() else found[0]

    return LINK.sub(rebased, text)


def on_config(config):
    sections = next(section["Reference"] for section in config.nav if "Reference" in section)
    sections[1:1] = [{title: list(pages.values())} if len(pages) > 1 else {title: next(iter(pages.values()))}
                     for title, pages in reference.sections().items()]
    return config


def on_files(files, config):
    for path, text in {**reference.pages(), "rules.md": rules.page(ROOT)[0]}.items():
        files.append(File.generated(config, path, content=text))
    wanted = {"CONTRIBUTING.md", "CHANGELOG.md"}
    for file in files.documentation_pages():
        if file.generated_by is None:
            found = (outside(file.src_uri, link) for link in LINK.findall(file.content_string))
            wanted |= {target for target, _ in filter(None, found)}
    for target in sorted(wanted):
        if not (ROOT / target).exists():
            raise ValueError(f"a page links to {target}, which does not exist")
        if not files.get_file_from_path(page_of(target)):
            generated = File.generated(config, page_of(target), content=shown(target))
            generated.inclusion = generated.inclusion.NOT_IN_NAV if not target.endswith(".md") else generated.inclusion
            files.append(generated)
    return files


def drawn(page, found):
    """A drawing, of the class of that name, without its own style: the site has one for both of its themes. A chart as it is, framed."""
    text = (ROOT / "docs" / posixpath.dirname(page) / found[1]).read_text()
    if 'class="drawing"' not in text:
        return f'<div class="drawing-frame" markdown>\n\n{found[0]}\n\n</div>'
    return '<div class="drawing-frame" data-search-exclude>' + re.sub(r"<style>.*?</style>|<!--.*?-->|\n", "", text, flags=re.DOTALL) + "</div>"


def description_of(markdown):
    """The first paragraph's sentences, as many as a search engine shows; nothing for a page without one."""
    code = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)
    paragraphs = (" ".join(block.split()) for block in re.split(r"\n\s*\n", code.sub("", markdown)))
    plain = (re.sub(r"!?\[([^\]]*)\]\([^)]*\)|[`*\\]", r"\1", text) for text in paragraphs if text and text[0] not in "#!<|-")
    sentences = re.split(r"(?<=[.:]) ", next(plain, ""))
    shown = sentences[0]
    for sentence in sentences[1:]:
        if len(shown) + len(sentence) < 200:
            shown += f" {sentence}"
        else:
            break
    return shown.removesuffix(":")


def on_page_markdown(markdown, page, config, files):
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    if description := description_of(markdown):
        page.meta["description"] = description
    markdown = DRAWING.sub(lambda found: drawn(page.file.src_uri, found), markdown)
    markdown = PICTURE.sub(r"[\g<0>](\1)", markdown)

    def inside(found):
        target = outside(page.file.src_uri, found[0])
        return relative(page.file.src_uri, page_of(target[0]), target[1]) if target else found[0]

    return LINK.sub(inside, markdown)


THEIR_SEARCH = re.compile(r"assets/javascripts/workers/search\.\w+\.min\.js")


def with_our_search(output, **_):
    named = output.replace('data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"')
    return THEIR_SEARCH.sub("site/search.js", named)


on_post_page = on_post_template = with_our_search


def on_post_build(config):
    """What the theme brings and nobody asks for goes. The playground is one page for itself; here it has a site around it, so its
    mark leads there."""
    site = pathlib.Path(config["site_dir"])
    for path in (*site.glob("assets/javascripts/*/**/*.js"), *site.rglob("*.map")):
        path.unlink()
    path = site / "playground.html"
    mark = '<span class="mark" aria-hidden="true"></span>'
    text = path.read_text()
    if text.count(mark) != 1:
        raise ValueError("playground.html has no mark to make a link of")
    path.write_text(text.replace(mark, '<a class="mark" href="index.html" title="heed" aria-label="heed, the documentation"></a>'))
