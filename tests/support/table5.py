"""Table 5 of the Zero Bubble paper (Qi et al., 2024), with its profiles."""

from __future__ import annotations

from typing import NamedTuple

from pipeloom import Objective, Problem, Profile, StageProfile

# model, P, M; T_F, T_B, T_W, T_comm; M_B, M_W; bubble rates of 1F1B, ZB-H1, ZB-H2
_ROWS = """
1.5B   8  24 18.522 18.086  9.337 0.601 201216  73728 0.2431 0.1585 0.1083
1.5B   8  32 18.513 18.086  9.331 0.626 201216  73728 0.1985 0.1242 0.0837
1.5B   8  64 18.546 18.097  9.321 0.762 201216  73728 0.1240 0.0674 0.0444
6.2B   8  24 29.718 29.444 19.927 0.527 303104 131072 0.2347 0.1323 0.0698
6.2B   8  32 29.802 29.428  19.53 0.577 303104 131072 0.1898 0.1045 0.0559
6.2B   8  64 29.935 29.621 19.388 0.535 303104 131072 0.1091 0.0554 0.0294
14.6B 16  48 11.347 11.248  8.132 0.377 378880 163840 0.2552 0.1397 0.0672
14.6B 16  64 11.307 11.254  8.101 0.379 378880 163840 0.2082 0.1088 0.0516
14.6B 16 128 11.325 11.308  8.109 0.378 378880 163840 0.1251 0.0576 0.0266
28.3B 32  96 10.419 10.207  7.715 0.408 454656 196608 0.2646 0.1421 0.0641
28.3B 32 128 10.408 10.204  7.703 0.408 454656 196608 0.2168 0.1106 0.0490
28.3B 32 256 10.402 10.248  7.698  0.46 454656 196608 0.1352 0.0594 0.0257
"""


class Row(NamedTuple):
    """``published``: the bubble rate of each family, to four digits."""

    model: str
    profile: Profile
    microbatches: int
    published: dict[str, float]

    def __str__(self) -> str:
        return f"{self.model}-{self.microbatches}"

    def problem(self, share: float, objective: Objective = Objective.PERIOD) -> Problem:
        """The problem with a memory limit of ``share`` times P x M_B."""
        limit = share * self.profile.ranks * self.profile.stages[0].m_b
        return Problem.linear(self.profile, self.microbatches, limit, objective)


def _rows() -> list[Row]:
    rows = []
    for model, *words in map(str.split, _ROWS.strip().splitlines()):
        ranks, microbatches, f, b, w, t_comm, m_b, m_w, *rates = map(float, words)
        stage = StageProfile(f, b, w, m_b, m_w)
        profile = Profile((stage,) * int(ranks), int(ranks), t_comm)
        published = dict(zip(("1f1b", "zb-h1", "zb-h2"), rates, strict=True))
        rows.append(Row(model, profile, int(microbatches), published))
    return rows


ROWS = {str(row): row for row in _rows()}
