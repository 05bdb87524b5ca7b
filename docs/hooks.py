"""What the site has beside docs/*.md: pages made of files at the top of the repository, docstrings and notebooks."""

import re
from pathlib import Path, PurePosixPath
from posixpath import dirname, normpath, relpath

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert.exporters import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor
from traitlets.config import Config

ROOT = Path(__file__).parent.parent
TOP = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files at the top of the repository, and the pages that they become."""
EXPORTS = {
    "python.md": """# Python, to run experiments

Settings have [a page of their own](settings.md).

::: orchard
""",
    "python-methods.md": """# Python, to write methods

`Experiment` and `UserError` are there too: they are those of [orchard](python.md).

::: orchard.methods
    options:
      filters: ["!^_", "!^Experiment$", "!^UserError$"]
""",
}
"""Pages of what a package exports to the outside."""
HOMES = {page: file for file, page in TOP.items()}
APART = re.compile(r"^(    \S.*\n)\n{2,}(?=    \S)", re.MULTILINE)
"""Lines of output, which belong together."""
LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    texts = {page: (ROOT / file).read_text("utf-8") for page, file in HOMES.items()} | EXPORTS
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    for source in sorted((ROOT / "docs" / "notebooks").glob("*.py")):
        for name, content in _notebook(source).items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def _notebook(source: Path) -> dict[str, str | bytes]:
    """Run a notebook; return its page and pictures by name. An error in a cell ends the build."""
    notebook = jupytext.read(source, fmt="py:percent")
    kernel = Config({"KernelManager": {"transport": "ipc"}})  # what cells say is for nobody else on this machine
    ExecutePreprocessor(kernel_name="python3", config=kernel).preprocess(notebook)
    names = {"unique_key": source.stem, "output_files_dir": f"{source.stem}_files"}
    text, made = MarkdownExporter().from_notebook_node(notebook, names)
    text = text.replace('<table border="1" class="dataframe">', "<table>")  # the theme leaves tables with a class alone
    return {f"{source.stem}.md": APART.sub(r"\1", text), **made["outputs"]}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that are right in the repository be right in the site."""
    source = page.file.src_uri
    home = PurePosixPath(HOMES.get(source, f"docs/{source}")).parent

    def there(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        target = normpath(home / path)
        if target in TOP or target.startswith("docs/"):
            page_there = TOP.get(target, target.removeprefix("docs/"))
            return f"[{text}]({relpath(page_there, dirname(source) or '.')}{anchor})"
        return text if (ROOT / target).exists() else link[0]  # source code has no page here

    return LINK.sub(there, markdown)
