"""What the site needs beyond docs/: the README and CONTRIBUTING as pages, and the source files that pages link to."""

import os
import posixpath
import re

from mkdocs.structure.files import File

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"\]\(([^()\s]+)\)")


def on_config(config):
    records = sorted(os.listdir(os.path.join(config.docs_dir, "decisions")))
    explanation = next(part["Explanation"] for part in config.nav if "Explanation" in part)
    explanation.append({"Decisions": [f"decisions/{name}" for name in records]})
    return config


def on_files(files, config):
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=os.path.join(ROOT, source)))
    pages = [file for file in files if file.src_uri.endswith(".md")]
    for path in sorted({path for page in pages for path in _linked_sources(page)}):
        shown = File.generated(config, _shown(path), abs_src_path=os.path.join(ROOT, path))
        files.append(shown)
    return files


def on_page_markdown(markdown, page, config, files):
    at = _repository_path(page.file)

    def site_link(match):
        target, hash_mark, anchor = match[1].partition("#")
        if "://" in target or not target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(at), target))
        if path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif path in PAGES:
            path = PAGES[path]
        elif os.path.isfile(os.path.join(ROOT, path)):
            path = _shown(path)
        here = posixpath.dirname(page.file.src_uri) or "."
        return f"]({posixpath.relpath(path, here)}{hash_mark}{anchor})"

    if page.file.src_uri == "configuration.md":
        # Its last section, where a repository shows only the link.
        with open(os.path.join(config.docs_dir, "reference.toml"), encoding="utf-8") as reference:
            markdown += f"\n\n```toml\n{reference.read()}```\n"
    return "\n".join(_lines(markdown, site_link))


def _lines(markdown, site_link):
    """Links for the site, and the blank line before lists and tables that this Markdown needs and GitHub's does not."""
    fenced, before = False, ""
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            starts = re.match(r"(- |\d+\. |\|)", line)
            if starts and before and not before.startswith((" ", starts[0][0])) and not re.match(r"\d+\. ", before):
                yield ""
            line = LINK.sub(site_link, line)
        before = line
        yield line


def _linked_sources(page):
    """Paths in the repository, outside of docs/, of the files that a page links to."""
    at = _repository_path(page)
    for target in LINK.findall(page.content_string):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(at), target.partition("#")[0]))
        outside = not path.startswith("docs/") and path not in PAGES and "://" not in target
        if outside and os.path.isfile(os.path.join(ROOT, path)):
            yield path


def _repository_path(page):
    return next((source for source, name in PAGES.items() if name == page.src_uri), f"docs/{page.src_uri}")


def _shown(path):
    """Browsers show text and would save a file of Rust."""
    return f"source/{path}.txt"
