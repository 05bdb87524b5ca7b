"""What the site has beside docs/*.md: pages made of the files at the top of the repository, and of docstrings."""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
TOP = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files at the top of the repository, and the pages that they become."""
EXPORTS = {
    "python.md": "# Python, to run experiments\n\nSettings have [a page of their own](settings.md).\n\n::: orchard\n",
    "python-methods.md": "# Python, to write methods\n\n::: orchard.methods\n",
}
"""Pages of what a package exports to the outside."""
HOMES = {page: file for file, page in TOP.items()}
LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    texts = {page: (ROOT / file).read_text("utf-8") for page, file in HOMES.items()} | EXPORTS
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that are right in the repository be right in the site."""
    source = page.file.src_uri
    home = PurePosixPath(HOMES.get(source, f"docs/{source}")).parent

    def there(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        target = normpath(home / path)
        if target in TOP:
            return f"[{text}]({TOP[target]}{anchor})"
        if target.startswith("docs/"):
            return f"[{text}]({target.removeprefix('docs/')}{anchor})"
        return text if (ROOT / target).exists() else link[0]  # source code has no page here

    return LINK.sub(there, markdown)
