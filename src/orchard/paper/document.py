"""Write docs/results.md and its figures from the files in results/ and nothing else.

    python -m orchard.paper.document results docs/results.md

Each `results/<table>.json` becomes a section; a `.md` of the same name adds a comment written by hand.
`results/introduction.md` comes first, `results/not-run.md` last. Figures go into a folder beside the document.
"""

import re
import sys
from pathlib import Path

from orchard.paper.figures import draw
from orchard.paper.reproduce import Reproduction
from orchard.paper.wording import claims, course_rows, table_rows

TITLES = {"table1": "Table 1", "table2": "Table 2, limited downloads"}
FIGURES = "figures"
"""The folder of the figures, beside the document."""


def tables(folder: Path) -> list[Reproduction]:
    """Return the tables that are kept in a folder."""
    return [Reproduction.read(path) for path in sorted(folder.glob("table*.json"))]


def document(folder: Path) -> str:
    """Return the whole document."""
    found = tables(folder)
    parts = [_text(folder / "introduction.md"), *(_section(one, folder) for one in found), _text(folder / "not-run.md")]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(found: Reproduction, folder: Path) -> str:
    seeds = f"seed{'s' if len(found.seeds) > 1 else ''} {', '.join(map(str, found.seeds))}"
    shared = found.shared
    made = {name: " and ".join(map(_shortened, values)) for name, values in found.environment.items()}
    commit = f", commit {made['git_commit']}" if any(found.environment["git_commit"]) else ""
    versions = {"code": "code", "results_version": "results version"}
    code = ", ".join(f"{text} {made[name]}" for name, text in versions.items() if made.get(name, "None") != "None")
    how = (
        f"{seeds}; {shared['clients']} clients, {shared['rounds']} rounds of {shared['epochs']} epochs, "
        f"{shared['fraction']:.0%} of the training data; torch {made['torch']}, {made['cpu']}, "
        f"{made['cores']} cores; {code}{commit}."
    )
    scale = ", at the paper's scale" if found.scale == "paper" else ""
    dataset = f"{found.dataset} (a copy of {found.copy_of})" if found.copy_of else found.dataset
    title = f"{dataset}, {found.partition}: {TITLES[found.table]}{scale}{', tuned' if found.tuned else ''}"
    return "\n\n".join(
        part
        for part in (
            f"## {title}",
            f"BMCTA in %. Scale `{found.scale}`; {how}",
            f"    {found.command}",
            _markdown(table_rows(found)),
            f"Not measured yet: {', '.join(found.missing)}." if found.missing else "",
            f"By an older version of the code: {', '.join(found.older)}." if found.older else "",
            "\n".join(f"- {claim}" for claim in claims(found)) if found.is_whole else "",
            _figures(found) if found.table == "table1" else "",
            _markdown(course_rows(found)),
            _text(folder / f"{found.name}.md"),
        )
        if part
    )


def _figures(found: Reproduction) -> str:
    figures = [f"![Accuracy by round]({FIGURES}/{found.name}.svg)"]
    if found.relationships:
        figures.append("APPLE's relationships: of each client to itself, and of each to all.")
        figures.append(f"![APPLE's relationships by round]({FIGURES}/{found.name}-relationships.svg)")
    return "\n\n".join(figures)


def _shortened(value: object) -> str:
    """Return a value as text; of a commit, only the first ten digits."""
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]{30}", r"\1", str(value))


def _markdown(rows: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body])


def _text(file: Path) -> str:
    return file.read_text("utf-8").strip() if file.exists() else ""


def write(folder: Path, file: Path) -> None:
    """Write the document and its figures."""
    file.write_text(document(folder), "utf-8")
    drawn = file.parent / FIGURES
    drawn.mkdir(exist_ok=True)
    for found in tables(folder):
        if found.table == "table1":
            draw(found, drawn)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
