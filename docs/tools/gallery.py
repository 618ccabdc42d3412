"""The gallery: a page with a picture of each family's schedule for one small profile.

``python docs/tools/gallery.py FOLDER`` writes the page and its pictures. ``make docs`` adds them to
the site only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.report.svg.timeline import timeline_svg
from pipeloom.solver.families import FAMILIES, build_family

RANKS, MICROBATCHES = 4, 8
STAGE = StageProfile(t_f=1.0, t_b=1.0, t_w=1.0, t_fb=2.5, m_b=1.0, m_w=0.5)
GROUPS = {
    "linear": "One stage per rank",
    "interleaved": "Interleaved: several stages per rank, round and round",
    "v_shape": "V and wave: down the ranks and back up",
    "bidirectional": "Bidirectional: two pipelines against each other",
    "weights": "Weight passing and sharded data",
}
TABLE = Path(__file__).parents[1] / "families.md"
HEAD = f"""# Gallery of families

All families of `pipeloom build`, on {RANKS} ranks with {MICROBATCHES} microbatches. On each rank,
T_F = T_B = T_W, and an F and a BW together take 2.5 instead of 3. Messages take no time. Light
colours mark the later stages of a rank. [Schedule families](families.md) describes the families
and defines T and the other symbols; `python docs/tools/gallery.py FOLDER` draws these pictures.
"""


def gallery() -> dict[str, str]:
    """Return path and text of the page ``gallery.md`` and its pictures ``gallery/FAMILY.svg``.

    Raises ValueError if a family is missing in the table of families.md.
    """
    rows, files = _rows(), {}
    sections = {group: [f"## {title}\n"] for group, title in GROUPS.items()}
    for name, family in FAMILIES.items():
        if name not in rows:
            raise ValueError(f"docs/families.md: the table has no row for the family {name}")
        files[f"gallery/{name}.svg"] = _picture(name)
        group = type(family).__module__.split(".")[-2]
        sections[group].append(_section(name, family.summary, *rows[name]))
    files["gallery.md"] = "\n".join([HEAD, *("\n".join(lines) for lines in sections.values())])
    return files


def _picture(name: str) -> str:
    profile = Profile(stages=(STAGE,) * RANKS, ranks=RANKS)
    schedule = build_family(name, profile, MICROBATCHES)
    return timeline_svg([(None, schedule)])


def _section(name: str, summary: str, bubble: str, memory: str, source: str) -> str:
    return (
        f"### {name}\n\n{summary[0].upper()}{summary[1:]}.\n\nBubble: {bubble}.  \n"
        f"Memory: {memory}.  \nSource: {source}.\n\n![{name}](gallery/{name}.svg)\n"
    )


def _rows() -> dict[str, tuple[str, str, str]]:
    """Return bubble, memory and source of each family, from the table in families.md."""
    found = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        match = re.fullmatch(r"`([a-z0-9-]+)(:[A-Z])?`", cells[0])
        if match and len(cells) == 4:
            found[match[1]] = (cells[1], cells[2], cells[3])
    return found


if __name__ == "__main__":
    for path, text in gallery().items():
        file = Path(sys.argv[1]) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
