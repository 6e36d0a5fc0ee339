"""Choose how many chunks are made ahead of the training loop.

A thread that makes chunks ahead helps little if the shelf between it and the loop has no room when
chunks are quick, and is empty after a slow one. This module replays the measured seconds of recent
chunks, and of the loop between them, with shelves of several depths. The smallest depth that is
nearly as fast as the best one is chosen, within the memory for chunks that wait. Source: the tuning
of buffer sizes in tf.data (Murray et al., VLDB 2021, 3.3), which asks a model of queues for the
probability of an empty buffer; the replay needs no assumption on how the seconds are distributed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from dml.events import CHUNKS, Tuned

# Least depth, with which a run begins to make chunks ahead; and the depths that are compared.
DEPTH = 2
DEPTHS = (DEPTH, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# A decision needs so many chunks, twice as many each time, and for each of them so many seconds of
# the loop and its waits, or the replay would take a part of that time.
WINDOW, MOST_WINDOW, CHUNK_S = 32, 256, 0.003
# Share of the time that must be lost before a depth is raised; and the share that may be lost with
# the depth that is chosen. Noise of a few percent does not carry a depth from one to the other.
LOST, KEPT = 0.02, 0.005
# Decisions in a row that must agree before a depth is lowered; twice as many after each regret, as
# long as the maker, beside the loop, is no more than OTHER times as fast or slow as it was then.
AGREE, MOST_AGREE, OTHER = 3, 192, 1.7
# Seconds per byte of new memory, which chunks that are made ahead need.
NEW_BYTE_S = 7e-10


def replayed(makes: Sequence[float], loops: Sequence[float], depth: int) -> float:
    """Return the seconds of a loop over chunks that come again and again.

    Chunk i takes ``makes[i]`` seconds to make, and the loop asks for it ``loops[i]`` seconds after
    it got the one before. A thread makes chunks ahead, of which ``depth`` may wait beside one that
    has no room yet; with depth 0, each is made when the loop asks for it. The first pass fills the
    shelf, and the second one is measured.
    """
    if not depth:
        return sum(makes) + sum(loops)
    got = free = first = 0.0  # times of the last chunk taken, and put on the shelf
    taken = deque([0.0] * depth, maxlen=depth)
    for _ in range(2):
        first = got
        for make_s, loop_s in zip(makes, loops, strict=True):
            free = max(free + make_s, taken[0])
            got = max(free, got + loop_s)
            taken.append(got)
    return got - first


class Variation:
    """Squared coefficient of variation of seconds that are added one by one."""

    __slots__ = ("count", "squares", "total")

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0

    def add(self, seconds: float) -> None:
        """Count ``seconds``."""
        self.count += 1
        self.total += seconds
        self.squares += seconds * seconds

    @property
    def squared(self) -> float:
        """Variance divided by the square of the mean; 0.0 of fewer than two seconds."""
        if self.count < 2 or not self.total:
            return 0.0
        return max(0.0, self.count * self.squares / self.total**2 - 1.0)


class PrefetchDepth:
    """Number of chunks of a pipeline that are made ahead; it tunes and records this number.

    ``name`` identifies the pipeline, and ``earlier`` is the number with which a run of another
    process ended. ``batched`` is True if elements are batches. Only one thread may call ``begin``
    and ``measured``.
    """

    known: ClassVar[dict[str, int]] = {}

    def __init__(self, name: str, earlier: int | None = None, *, batched: bool = True) -> None:
        self.name, self.batched = name, batched
        self.before = self.known.get(name, earlier)
        self.depth, self.most_bytes, self.largest = DEPTH, 0, 1
        self.changes: list[Tuned] = []
        self.elements = 0  # delivered so far
        self.needs: list[int] = []  # sufficient depths by recent decisions
        self.agree, self.lowered = AGREE, False
        self.pace = 1.0  # seconds of the maker for one of the loop
        self.missed_s = 0.0
        self.seconds = Variation()  # of all chunks
        self.window = WINDOW
        self._begin_window()

    def _begin_window(self) -> None:
        self.makes, self.loops = list[float](), list[float]()
        self.window_s = self.waited_s = 0.0

    def begin(self, elements: int, waited: float, nbytes: int, most_bytes: int) -> int:
        """Return the depth with which chunks of up to ``nbytes`` begin to be made ahead.

        ``elements`` were delivered before, for which the loop waited a share ``waited`` of its
        time. Chunks that wait may take ``most_bytes``.
        """
        self.elements, self.largest, self.most_bytes = elements, max(1, nbytes), most_bytes
        depth, reason = DEPTH, _waits(waited)
        if self.before is not None and self.before > DEPTH:
            depth, reason = min(self.before, self._most()), "as in the run before"
        self.depth = 0
        self._set(depth, reason)
        return self.depth

    def measured(
        self, make_s: float, loop_s: float, waited_s: float, elements: int, nbytes: int
    ) -> int:
        """Record a delivered chunk of some ``elements``; return the depth from now on.

        The chunk was made in ``make_s`` seconds; the loop asked for it ``loop_s`` seconds after it
        got the one before, and waited for it.
        """
        self.elements += elements
        self.seconds.add(make_s)
        self.largest = max(self.largest, nbytes)
        self.window_s += loop_s + waited_s
        self.waited_s += waited_s
        if len(self.makes) < self.window:  # more would take longer to replay
            self.makes.append(make_s)
            self.loops.append(loop_s)
        if len(self.makes) == self.window and self.window_s >= CHUNK_S * self.window:
            self._judge()
            self.window = min(2 * self.window, MOST_WINDOW)
            self._begin_window()
        return self.depth

    def _most(self) -> int:
        """Return the largest depth whose chunks fit."""
        return max(DEPTH, min(DEPTHS[-1], self.most_bytes // self.largest))

    def _judge(self) -> None:
        """Compare depths for the chunks of the window, and change the depth if that pays."""
        most = self._most()
        if self.depth > most:
            self._set(most, "more would not fit")
        seconds = {
            depth: replayed(self.makes, self.loops, depth)
            for depth in {self.depth, most, *DEPTHS}
            if depth <= most
        }
        pace = sum(self.makes) / max(sum(self.loops), 1e-9)
        if not self.pace / OTHER < pace < self.pace * OTHER:
            self.pace, self.agree, self.lowered, self.needs = pace, AGREE, False, []
        best, now = min(seconds.values()), seconds[self.depth]
        enough = min(depth for depth in seconds if seconds[depth] <= (1 + KEPT) * best)
        if now > (1 + LOST) * best:
            self._raise(enough, now - best)
        else:
            self._lower(enough)

    def _raise(self, enough: int, missed_s: float) -> None:
        """Raise the depth to ``enough`` once the missed seconds exceed the cost of new memory."""
        self.missed_s += missed_s
        self.needs.clear()
        if self.missed_s >= NEW_BYTE_S * (enough - self.depth) * self.largest:
            self.agree = min(2 * self.agree, MOST_AGREE) if self.lowered else self.agree
            self.lowered = False
            self._set(enough, _waits(self.waited_s / self.window_s))

    def _lower(self, enough: int) -> None:
        """Lower the depth to what sufficed in each of the last decisions, if that is less."""
        self.needs = [*self.needs, enough][-self.agree :]
        most = max(self.needs)
        if len(self.needs) == self.agree and most < self.depth:
            self.lowered = True
            self._set(most, "so many suffice")

    def _set(self, depth: int, reason: str) -> None:
        before, self.depth = self.depth, depth
        self.missed_s = 0.0
        self.known[self.name] = depth
        self.changes.append(
            Tuned(
                name=self.name,
                stage="prefetch",
                before=before,
                after=depth,
                reason=reason,
                number=CHUNKS,
                rows=0 if self.batched else self.elements,
                batches=self.elements if self.batched else 0,
            )
        )


def _waits(share: float) -> str:
    return f"the loop waited {share:.0%} of its time"
