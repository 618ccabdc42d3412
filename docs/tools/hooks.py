"""What mkdocs calls: generated pages, pages from elsewhere in the repository, and their links."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from command_help import command_reference
from gallery import gallery
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from public_names import python_reference, undocumented
from repository_links import added, with_site_links

LOG = logging.getLogger("mkdocs.hooks.pipeloom")  # strict mode counts its warnings


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is not in ``docs/``: generated pages, and what pages link to elsewhere."""
    for name in undocumented():
        LOG.warning("pipeloom.%s has no docstring", name)
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    try:
        extra: dict[str, str | Path] = {**_generated(), **added(pages)}
    except (FileNotFoundError, ValueError) as error:
        LOG.warning("%s", error)
        return files
    for path, content in extra.items():
        files.append(_file(config, path, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has their targets."""
    return with_site_links(page.file.src_uri, markdown)


@cache
def _generated() -> dict[str, str]:
    return {
        **gallery(),
        "reference/commands.md": command_reference(),
        "reference/python.md": python_reference(),
    }


def _file(config: MkDocsConfig, path: str, content: str | Path) -> File:
    if isinstance(content, Path):
        return File.generated(config, path, abs_src_path=str(content))
    return File.generated(config, path, content=content)
