"""The hooks of mkdocs: add generated pages and pages from other folders, and adjust links."""

from __future__ import annotations

import logging
import re
from functools import cache
from pathlib import Path

from command_help import with_options
from explored import explored
from format_keys import with_keys
from gallery import gallery
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from public_names import python_reference, undocumented
from repository_links import added, with_site_links

LOG = logging.getLogger("mkdocs.hooks.pipeloom")  # strict mode counts its warnings
SHORT = re.compile(r"(?<!<pre>)<code>([^\s<]{1,24})</code>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages, and the files outside ``docs/`` to which pages link."""
    for name in undocumented():
        LOG.warning("pipeloom.%s has no docstring", name)
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    try:
        extra: dict[str, str | Path] = {**_generated(), **added(pages)}
    except (FileNotFoundError, ValueError) as error:
        raise PluginError(str(error)) from error
    for path, content in extra.items():
        files.append(_file(config, path, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adjust links to the site, and append the options of a command, or the keys of files, to
    their page."""
    path = page.file.src_uri
    return with_keys(path, with_options(path, with_site_links(path, markdown)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark short code within lines, which then does not break after hyphens (site.css)."""
    return SHORT.sub(r'<code class="short">\1</code>', html)


@cache
def _generated() -> dict[str, str]:
    made = {"explored.html": explored(), "reference/python.md": python_reference()}
    return gallery() | made


def _file(config: MkDocsConfig, path: str, content: str | Path) -> File:
    if isinstance(content, Path):
        return File.generated(config, path, abs_src_path=str(content))
    return File.generated(config, path, content=content)
