"""Draws the random numbers of an image from (seed, epoch, index) alone: alike on any rank and thread, in any order."""

from __future__ import annotations

import math

_MASK = (1 << 64) - 1


def _mix(state: int) -> int:
    """Returns splitmix64's output for a state: a well-mixed 64-bit number."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


class KeyedRandom:
    """A splitmix64 stream. numpy's generators cost more to set up than a small image costs to transform, and their
    streams may change between numpy releases."""

    __slots__ = ("_state",)
    _STEP = 0x9E3779B97F4A7C15

    def __init__(self, seed: int, epoch: int, index: int):
        state = 0
        for word in (seed, epoch, index):
            state = _mix((state + self._STEP + word) & _MASK)
        self._state = state

    def copy(self) -> KeyedRandom:
        """Returns a copy that draws the same numbers from here on."""
        twin = KeyedRandom.__new__(KeyedRandom)
        twin._state = self._state
        return twin

    def _next(self) -> int:
        self._state = (self._state + self._STEP) & _MASK
        return _mix(self._state)

    def integer(self, low: int, high: int) -> int:
        """Returns a whole number, uniform in low..high, both included."""
        return low + ((self._next() * (high - low + 1)) >> 64)

    def uniform(self, low: float, high: float) -> float:
        """Returns a number, uniform in [low, high)."""
        return low + (self._next() >> 11) * 2.0**-53 * (high - low)

    def coin(self) -> bool:
        return self._next() >> 63 == 1

    def _in_circle(self) -> tuple[float, float]:
        """Returns (x, x^2 + y^2) of a point that is uniform in the unit circle, but for its centre."""
        while True:
            x, y = self.uniform(-1, 1), self.uniform(-1, 1)
            if 0 < x * x + y * y <= 1:
                return x, x * x + y * y

    def normal(self) -> float:
        """Returns a normal number of mean 0 and standard deviation 1, by Marsaglia's polar method."""
        x, square = self._in_circle()
        return _rounded(x * math.sqrt(-2 * math.log(square) / square))

    def beta(self, alpha: float) -> float:
        """Returns a number of the distribution Beta(alpha, alpha). It is (1 + t / sqrt(2 alpha + t^2)) / 2 for a number
        t of Student's with 2 alpha degrees of freedom, by Bailey's polar method (Math. Comp. 62, 1994)."""
        x, square = self._in_circle()
        power = square ** (1 / alpha)
        gained = (1 - power) * x * x / square
        return _rounded((1 + math.copysign(math.sqrt(gained / max(power + gained, 1e-300)), x)) / 2)


def _rounded(value: float) -> float:
    """Returns a value without its last bits, in which the C library's functions differ between processors."""
    return round(value * 2.0**24) / 2.0**24
