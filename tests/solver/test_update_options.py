"""LARS, LARC, AdamW and other options of updates: one step of a solver against the formulas."""

import numpy as np
import pytest

from tests.solver.harness import digits_net, make_solver


def one_step(text: str) -> list[tuple]:
    """Takes one step. Returns (parameter, weights before, gradient, weights after) of each parameter, as float64, in
    the kernels' layout."""
    solver = make_solver(f"iter_size: 2 {text}", digits_net())
    before = solver.optimizer.weights.astype(np.float64)
    solver.feeder.start()
    solver.step()
    solver.optimizer.wait()
    gradients, after = (
        solver.optimizer.gradients.astype(np.float64) / solver.iter_size,
        solver.optimizer.weights.astype(np.float64),
    )
    result = []
    for placed in solver.net.parameters:
        piece = slice(placed.offset, placed.offset + placed.count)
        result.append((placed.parameter, before[piece], gradients[piece], after[piece]))
    solver.close()
    assert len(result) == 6 and {parameter.decay_mult for parameter, *_ in result} == {0, 1}
    return result


@pytest.mark.parametrize("policy", ["scale", "clip"])
def test_layer_wise_rates(policy):
    rate, ratio, decay = 0.05, 0.005, 0.01
    text = f"base_lr: {rate} weight_decay: {decay} local_lr_auto: true local_gw_ratio: {ratio} "
    limited = []
    for parameter, w, g, after in one_step(f'{text} larc_policy: "{policy}"'):
        norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
        local = ratio * norm_w / (norm_g + decay * norm_w) if norm_w else 1  # biases begin at 0
        taken = rate * local if policy == "scale" else min(rate, local)
        limited.append(taken == rate)
        np.testing.assert_allclose(after, w - taken * (g + decay * parameter.decay_mult * w), rtol=1e-5, atol=1e-7)
    assert policy == "scale" or len(set(limited)) == 2


@pytest.mark.parametrize("text", ["local_lr_auto: true local_gw_ratio: 0.005", "larc: true larc_eta: 0.005"])
def test_layer_wise_rates_of_decayed_parameters_only(text):
    """Other parameters, such as a bias that begins at 0, have the rate that lr_mult gives."""
    rate, decay = 0.05, 0.01
    found = set()
    for parameter, w, g, after in one_step(f"base_lr: {rate} weight_decay: {decay} local_lr_decayed_only: true {text}"):
        norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
        denominator = norm_g + (decay * norm_w if "auto" in text else 0)
        local = 0.005 * norm_w / denominator if norm_w else 1
        taken = rate * (local if parameter.decay_mult else parameter.lr_mult)
        found.add((parameter.decay_mult, parameter.lr_mult))
        np.testing.assert_allclose(after, w - taken * (g + decay * parameter.decay_mult * w), rtol=1e-5, atol=1e-7)
    assert (0, 2) in found and (1, 1) in found


def test_decoupled_decay():
    rate, decay = 0.01, 0.1
    text = f'type: "Adam" base_lr: {rate} weight_decay: {decay} momentum: 0.9 delta: 1e-4 decoupled_weight_decay: true'
    for parameter, w, g, after in one_step(text):
        # In the first step the corrected moments are g and g^2. The correction is part of the rate, so delta is not
        # corrected.
        second = np.sqrt(0.001) * np.abs(g)
        step = np.sqrt(0.001) / 0.1 * 0.1 * g / (second + 1e-4) + decay * parameter.decay_mult * w
        np.testing.assert_allclose(after, w - rate * parameter.lr_mult * step, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ["scale", "clip"])
def test_nvidias_layer_wise_rates(policy):
    """Momentum is compensated for, and the decay is not in the denominator."""
    rate, eta, decay = 0.05, 0.01, 0.01
    text = f"base_lr: {rate} weight_decay: {decay} momentum: 0.5 larc: true larc_eta: {eta} larc_policy: '{policy}'"
    for parameter, w, g, after in one_step(text):
        norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
        local = 0.5 * eta * norm_w / norm_g if norm_w else 1
        taken = rate * local if policy == "scale" else min(rate, local)
        np.testing.assert_allclose(after, w - taken * (g + decay * parameter.decay_mult * w), rtol=1e-5, atol=1e-7)


def test_weights_are_clamped():
    for _, w, _, after in one_step("base_lr: 0.05 clamp_weights_lower: -0.125 clamp_weights_upper: 0.0625"):
        assert -0.125 <= after.min() and after.max() <= 0.0625
        assert not w.any() or (w.max() > 0.0625 and (abs(after) < 0.06).any())


def test_a_scale_stays_within_its_bounds():
    net = digits_net().replace(
        'layer { name: "tanh"',
        'layer { name: "scale" type: "Scale" bottom: "ip1" top: "ip1" '
        "scale_param { min_value: 0.99 max_value: 1.01 } }\n"
        'layer { name: "tanh"',
    )
    solver = make_solver("base_lr: 5", net)
    solver.feeder.start()
    solver.step()
    solver.optimizer.wait()
    scale = solver.net.params["scale"][0].get()
    solver.close()
    assert scale.min() == np.float32(0.99) and scale.max() == np.float32(1.01)


def test_momentum_follows_its_policy():
    """The momentum is 0 in the first step and 0.25 in the second."""
    text = 'momentum_policy: "poly" momentum: 0 max_momentum: 0.5 max_iter: 2 base_lr: 0.05'
    solver = make_solver(text, digits_net())
    solver.feeder.start()
    weights = [solver.optimizer.weights.astype(np.float64)]
    gradients = []
    for _ in range(2):
        solver.step()
        solver.optimizer.wait()
        weights.append(solver.optimizer.weights.astype(np.float64))
        gradients.append(solver.optimizer.gradients.astype(np.float64))
    multiples = np.ones_like(weights[0])
    for placed in solver.net.parameters:
        multiples[placed.offset : placed.offset + placed.count] = placed.parameter.lr_mult
    solver.close()
    first, second = (0.05 * multiples * gradient for gradient in gradients)
    np.testing.assert_allclose(weights[0] - weights[1], first, atol=1e-6)
    np.testing.assert_allclose(weights[1] - weights[2], second + 0.25 * first, atol=1e-6)
