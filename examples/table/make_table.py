"""Prints a table that a net can learn: the pressure of a gas by van der Waals' equation in reduced units,
p = 8 T / (3 v - 1) - 3 / v^2.

    python examples/table/make_table.py > gas.csv

The table has a line `temperature,volume,pressure` for each of 60 temperatures x 80 volumes. It stands for any table
that is costly to compute and is looked up millions of times: equations of state, opacities, cross sections.
"""

import numpy as np

TEMPERATURES, VOLUMES = np.linspace(0.9, 2, 60), np.geomspace(0.6, 6, 80)


def pressure(temperature, volume):
    return 8 * temperature / (3 * volume - 1) - 3 / volume**2


if __name__ == "__main__":
    print("temperature,volume,pressure")
    for temperature in TEMPERATURES:
        for volume in VOLUMES:
            print(f"{temperature:.6g},{volume:.6g},{pressure(temperature, volume):.8g}")
