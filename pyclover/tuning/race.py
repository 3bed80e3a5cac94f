"""Who is still in the race after each turn, and when it is over: a function of the turns alone.

A turn is one prompt answered once by everyone in the race. After it, each pair is compared: who took less time a token.
A candidate leaves when `evidence` that it loses to some other more often than not reaches K (K - 1) / alpha, with K
candidates at the start, and it is slower than that one on the whole, too. By Ville's inequality and the union over all
ordered pairs, the chance that anyone ever leaves because of one that it does not lose to is at most alpha, however long
the race goes on and whenever it ends. Plain decoding, with which all is compared, never leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pyclover.tuning.statistics import evidence

ALPHA = 0.05


class Race:
    """The state of a race.

    Args:
        n: candidates; the first one never leaves.
        stays: others that never leave, such as what was asked for to be reported on.
        alpha: chance of dropping anyone wrongly.
    """

    def __init__(self, n: int, *, stays: Sequence[int] = (), alpha: float = ALPHA) -> None:
        self.n = n
        self.alive = list(range(n))
        self.left_at: dict[int, int] = {}  # candidate -> turns seen when it left
        self.n_turns = 0
        self._stays = {0, *stays}
        self._enough = n * (n - 1) / alpha
        self._wins = [[0] * n for _ in range(n)]
        self._ahead = [[0.0] * n for _ in range(n)]  # sum of log(time of the other / own time)

    def see(self, times: Mapping[int, float]) -> None:
        """Takes a turn: candidate -> seconds a token; those that gave no token (0) are not compared."""
        self.n_turns += 1
        timed = [(i, t) for i, t in times.items() if t > 0]
        for i, a in timed:
            for j, b in timed:
                if a < b:
                    self._wins[i][j] += 1
                if i != j:
                    self._ahead[i][j] += math.log(b / a)
        leaving = [i for i in self.alive if i not in self._stays and self._lost(i)]
        for i in leaving:
            self.left_at[i] = self.n_turns
        self.alive = [i for i in self.alive if i not in leaving]

    def _lost(self, i: int) -> bool:
        return any(
            self._ahead[i][j] < 0 and evidence(self._wins[j][i], self._wins[i][j]) >= self._enough
            for j in self.alive
            if j != i
        )
