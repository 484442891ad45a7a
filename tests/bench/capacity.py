"""The highest offered load at which the first token's p99 stays below a limit, searched on a ladder of steps of 25 %."""

from dataclasses import dataclass

LIMIT_S = 0.25
# Tokens per second of step 0. Step n is 1.25^n times as much.
BASE = 8_192
STEPS = 24


class Failed(Exception):
    """A case has no result."""


def load_of(step):
    """The offered load of a step in tokens/s."""
    return round(BASE * 1.25**step)


@dataclass
class Point:
    """A measured load: tokens per second offered, and its first token's p99 in seconds. None if the run did not end in time."""

    load: int
    p99: float | None

    def holds(self):
        return self.p99 is not None and self.p99 < LIMIT_S


def search(measure, start):
    """Measures steps from `start` on, first in strides of three, until a step that holds is next to one that does not.

    `measure(load)` returns the p99 in seconds, and raises Failed if the run did not end in time. Each step is measured once. Returns
    the points by load.
    """
    points = {}

    def holds(step):
        if step not in points:
            try:
                p99 = measure(load_of(step))
            except Failed as error:
                print(f"{load_of(step):,} tokens/s: {error}", flush=True)
                p99 = None
            points[step] = Point(load_of(step), p99)
        return points[step].holds()

    low, high = -1, STEPS  # low holds, high does not; both are outside of the ladder at first
    step = start
    while high - low > 1:
        if holds(step):
            low = step
            step = step + 3 if high == STEPS and step + 3 < STEPS else (low + high) // 2
        else:
            high = step
            step = step - 3 if low == -1 and step >= 3 else (low + high) // 2
    return sorted(points.values(), key=lambda point: point.load)
