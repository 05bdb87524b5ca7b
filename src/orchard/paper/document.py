"""docs/results.md, made from the figures kept in results/ and from nothing else.

    python -m orchard.paper.document results docs/results.md

Each `results/<table>.json` gives a section; a `.md` of the same name beside it is what a person has to say of it.
`results/introduction.md` comes first, `results/not-run.md` last.
"""

import sys
from pathlib import Path

from orchard.paper.reproduce import Reproduction, claims, table_rows

TITLES = {"table1": "Table 1", "table2": "Table 2, limited downloads"}


def document(folder: Path) -> str:
    """Return the whole document."""
    found = [Reproduction.read(path) for path in sorted(folder.glob("table*.json"))]
    parts = [_text(folder / "introduction.md"), *(_section(one, folder) for one in found), _text(folder / "not-run.md")]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(found: Reproduction, folder: Path) -> str:
    seeds = f"seed{'s' if len(found.seeds) > 1 else ''} {', '.join(map(str, found.seeds))}"
    shared, made = found.shared, found.environment
    how = (
        f"{seeds}; {shared['clients']} clients, {shared['rounds']} rounds of {shared['epochs']} epochs, "
        f"{shared['fraction']:.0%} of the training data; torch {made['torch']}, {made['cpu']}, "
        f"{made['cores']} cores; code {made['code']}."
    )
    seeded = "" if found.seeds == [42] else f" --seeds {','.join(map(str, found.seeds))}"
    command = (
        f"orchard reproduce {found.table} --dataset {found.dataset} --partition {found.partition} "
        f"--scale {found.scale}{seeded}"
    )
    return "\n\n".join(
        part
        for part in (
            f"## {found.dataset}, {found.partition}: {TITLES[found.table]}",
            f"BMCTA in %. Scale `{found.scale}`; {how}",
            f"    {command}",
            _markdown(table_rows(found)),
            "\n".join(f"- {claim}" for claim in claims(found)),
            _text(folder / f"{found.name}.md"),
        )
        if part
    )


def _markdown(rows: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body])


def _text(file: Path) -> str:
    return file.read_text("utf-8").strip() if file.exists() else ""


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(document(Path(sys.argv[1])), "utf-8")
