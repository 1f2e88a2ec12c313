"""A hook of MkDocs (mkdocs.yml). Adds pages that are no files of docs/: documents from elsewhere, such as the README,
the command line, from the arguments of the verbs, and the Python reference, from docstrings."""

from __future__ import annotations

import argparse
import html
import posixpath
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.verbs.command_line import parser_of, verb_names  # noqa: E402

# Documents outside docs/ -> their pages.
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/python/README.md": "examples.md",
    "examples/digits/README.md": "digits.md",
}
PAGES = {**ELSEWHERE, **{f"docs/{path.name}": path.name for path in (ROOT / "docs").glob("*")}}
WIDE = {"layers.md", "dialects.md", "performance.md"}  # shown without a list of headings, whose place their tables need
API = {
    "Nets and solvers": ["engine.caffe.net.Net", "engine.caffe.blobs.Blob", "engine.caffe.solver"],
    "Using trained nets": ["engine.caffe.classifier.Classifier", "engine.caffe.detector.Detector"],
    "Writing nets": ["engine.caffe.net_spec", "engine.layers.python_layer.PythonLayer", "engine.caffe.draw"],
    "Pictures and arrays": ["engine.caffe.io"],
    "Ranks and settings": ["engine.caffe.ranks", "engine.caffe.mode"],
    "What watches a run": ["engine.report.observer"],
    "Errors": ["engine.errors"],
}
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)#\s]*)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages to the site's files."""
    made = {page: (ROOT / path).read_text() for path, page in ELSEWHERE.items()}
    made |= {page: "".join(text()) for page, text in MADE.items()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_) -> str:
    """Changes links to files of the repository into links to pages of the site, or into plain text if the file is no
    page."""
    if page.file.src_path in WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.src_path in MADE:
        return markdown
    path = next(path for path, name in PAGES.items() if name == page.file.src_path)

    def led(link: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        if target in PAGES:
            return f"[{link[1]}]({PAGES[target]}{link[3] or ''})"
        return link[1] if (ROOT / target).exists() else link[0]  # MkDocs reports a link that leads nowhere

    return LINK.sub(led, markdown)


def _commands() -> Iterator[str]:
    """Yields the page of the command line, with a section for each verb."""
    yield "# Command line\n\n`engine VERB ...`; flags have Caffe's names and may begin with one dash, too.\n\n"
    modules = {name: import_module(f"engine.verbs.{name}") for name in verb_names()}
    order = sorted(modules, key=lambda name: (getattr(modules[name], "ORDER", 1000), name))
    yield "| verb | what it does |\n|---|---|\n"
    yield from (f"| [`{name}`](#engine-{name}) | {modules[name].SUMMARY} |\n" for name in order)
    for name in order:
        parser = parser_of(name)
        arguments = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
        yield f"\n## engine {name}\n\n{_text(modules[name].__doc__)}\n"
        yield "\n| argument | meaning |\n|---|---|\n" if arguments else ""
        yield from (f"| {_names(action)} | {_meaning(parser, action)} |\n" for action in arguments)
        yield "\n```sh\n" + "\n".join(modules[name].EXAMPLES) + "\n```\n"


def _names(action: argparse.Action) -> str:
    """Returns an argument's flags, each with its value, or its name if it has no flag."""
    value = "" if action.nargs == 0 else action.metavar or "|".join(map(str, action.choices or [action.dest]))
    value = " ".join(value) if isinstance(value, tuple) else value
    given = [f"{flag} {value}".strip() for flag in action.option_strings] or [value]
    return ", ".join(f"<code>{_text(each)}</code>" for each in given)


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Returns an argument's help, with %(default)s replaced."""
    return _text(parser._get_formatter()._expand_help(action)) if action.help else ""


def _text(text: str | None) -> str:
    """Escapes plain text for a cell of a table in Markdown."""
    plain = html.escape(" ".join((text or "").split()), quote=False)
    return re.sub(r"([|*_`\[\]\\])", r"\\\1", plain)


def _api() -> Iterator[str]:
    """Yields the page of the Python reference. mkdocstrings replaces its `:::` lines by docstrings."""
    yield "# Python reference\n\nWhat is like Caffe's, and what is not: [Python](python.md).\n"
    for title, names in API.items():
        yield f"\n## {title}\n"
        for name in names:
            yield f"\n::: {name}\n    options:\n      heading_level: 3\n"


MADE = {"commands.md": _commands, "api.md": _api}  # page -> what yields its text
