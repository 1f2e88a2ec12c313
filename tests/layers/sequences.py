"""Shared by the tests of LSTM, GRU and RNN: nets of one recurrent layer, and values for them."""

from __future__ import annotations

import numpy as np

STEPS, BATCH, UNITS = 4, 3, 5
FILLERS = 'weight_filler { type: "uniform" min: -0.5 max: 0.5 } bias_filler { type: "uniform" min: -0.3 max: 0.3 }'


def layer(kind: str, bottoms: str = "x cont", tops: str = "y", params: str = "", units: int = UNITS) -> str:
    names = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    names += " " + " ".join(f'top: "{name}"' for name in tops.split())
    return (
        f'layer {{ name: "layer" type: "{kind}" {names} recurrent_param {{ num_output: {units} {FILLERS} {params} }} }}'
    )


def values(
    names: str = "x cont", features=(2,), static=(4,), steps: int = STEPS, states: str = "", units: int = UNITS
) -> dict[str, np.ndarray]:
    """Returns the bottoms by name. Each sequence begins at step 0, but if there are `states`, two go on from the last
    batch. The second sequence begins again at step 2."""
    generator = np.random.default_rng(18)
    cont = np.ones((steps, BATCH), np.float32)
    cont[0] = 0
    cont[0, :2] = bool(states)
    cont[2, 1] = 0
    shapes = {"x": (steps, BATCH, *features), "s": (BATCH, *static)}
    shapes |= dict.fromkeys(states.split(), (1, BATCH, units))
    made = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: cont if name == "cont" else made[name] for name in f"{names} {states}".split()}


def drive(bottoms: dict[str, np.ndarray], params: list[np.ndarray]) -> np.ndarray:
    """Returns what x, bias and the static input add to the gates, (T, N, gates * UNITS), in float64."""
    x = bottoms["x"].astype(np.float64)
    result = x.reshape(*x.shape[:2], -1) @ params[0].T + params[1]
    if "s" in bottoms:
        result += bottoms["s"].reshape(BATCH, -1).astype(np.float64) @ params[2].T
    return result


def shapes_of(bottoms: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in bottoms.items()}
