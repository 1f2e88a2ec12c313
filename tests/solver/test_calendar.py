"""Calendar's conversions between iterations, samples and epochs, against counting one by one."""

from fractions import Fraction

import pytest

from engine.solver.calendar import Calendar


def iterations_of(calendar: Calendar, epochs: Fraction) -> int:
    """Returns how many whole iterations fit into epochs, at least 1, by counting."""
    count = 0
    while calendar.samples(count + 1) <= epochs * calendar.size:
        count += 1
    return max(1, count)


@pytest.mark.parametrize("steps", [(), (25, 35)])
@pytest.mark.parametrize("epochs", ["0.05", "0.1", "0.33", "0.7", "1", "2.9"])
def test_a_calendar(epochs, steps):
    """What is due at an interval comes at the iterations where runs of so many epochs would end."""
    calendar = Calendar(10, 100, steps, 4)
    assert [calendar.samples(i) for i in (0, 10, 25)] == [0, 100, 250]
    if steps:
        assert [calendar.samples(i) for i in (26, 35, 36)] == [290, 650, 810]
    interval, among = Fraction(epochs), range(1, 50)
    assert calendar.iterations(float(epochs)) == iterations_of(calendar, interval)
    due = {iterations_of(calendar, k * interval) for k in range(1, int(32 / interval))}
    assert [i for i in among if calendar.is_due(i, 0, float(epochs))] == sorted(due & set(among))
    assert calendar.is_due(0, 0, float(epochs)) and not calendar.is_due(7, 0, 0)
    assert [i for i in range(9) if calendar.is_due(i, 4, 0)] == [0, 4, 8]
