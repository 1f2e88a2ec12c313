"""`engine predict`: predicts step time, efficiency and exposed communication of a net on more ranks than are available.

It runs engine.predict.simulate with a profile (the times of layers on one rank) and a model of the network.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from engine import proto
from engine.comm.buckets import FLOAT_BYTES, Bucket, make_buckets
from engine.comm.link import Link, Links
from engine.comm.settings import MB, CommSettings, comm_settings
from engine.comm.world import World
from engine.config.prototext import fill, scan
from engine.data.source_shapes import SourceShapes
from engine.errors import ConfigError, printable
from engine.examine.benchmark import benchmark
from engine.examine.times import Times, to_json
from engine.graph.build import build
from engine.graph.costs import layer_costs
from engine.host.cores import all_hosts_and_cores, host_and_cores
from engine.predict import calibrate
from engine.predict.simulate import Network, Op, Work, step_seconds
from engine.report.log import log
from engine.report.table import table

if TYPE_CHECKING:
    from engine.config import NetConfig

BUCKETS_MB = (0.5, 1, 2, 4, 8, 16, 32)
SERVERS = (0, 1, 2, 4, 8)
GAIN = 0.995  # another setting has to be better than the default by this factor to be recommended
# Assumed where nothing was measured: seconds in which a thread updates a float (20 bytes at 3 GB/s); threads of a rank.
UPDATE, THREADS = 20 / 3e9, 32
BACKWARD = 2.0  # floating-point operations of backward over those of forward
MOST = 1e12  # the largest figure that a profile may have


@dataclass(frozen=True)
class Profile:
    """The times of a step of one rank."""

    net: str
    batch: int
    threads: int
    forward: list[float]  # seconds of each layer, in forward's order
    backward: list[float]  # the same of its backward, also in forward's order
    gradients: list[int]  # floats that each layer's backward completes
    update: float  # seconds of one thread for a byte of gradients
    together: bool = False  # whether these are times while all ranks of the machine computed
    variation: float | None = None  # standard deviation of steps over their mean; None: not measured

    @property
    def compute(self) -> float:
        """Seconds of forward and backward."""
        return sum(self.forward) + sum(self.backward)

    def scaled(self, factor: float, batch: int) -> Profile:
        forward, backward = ([factor * seconds for seconds in each] for each in (self.forward, self.backward))
        return replace(self, forward=forward, backward=backward, batch=batch)

    def at_batch(self, batch: int) -> Profile:
        """Returns the profile at another batch: compute is in proportion to the batch."""
        return self.scaled(batch / self.batch, batch)

    def at_rate(self, images_per_second: float) -> Profile:
        """Returns the profile on another machine, where one rank trains so many images per second, with the update.
        Raises ConfigError if the update alone takes longer."""
        update = FLOAT_BYTES * sum(self.gradients) * self.update / self.threads
        compute = self.batch / images_per_second - update
        if compute <= 0:
            raise ConfigError(f"{images_per_second:g} images per second: the update alone takes {1e3 * update:.1f} ms")
        return self.scaled(compute / self.compute, self.batch)


def measured(times: dict[str, Any], source: str) -> Profile:
    """Makes a profile of what `engine time --json` writes. Raises ConfigError if that is not of training on one rank.
    source: the file, for errors."""
    none = "not a profile of engine time --json"
    if not isinstance(times, dict) or times.get("layers") == []:
        raise ConfigError(none, source)
    try:
        if times["phase"] != "TRAIN" or times["ranks"] != 1:
            raise ConfigError("expected the profile of one rank in phase TRAIN", source)
        layers = times["layers"]
        floats = [_whole(layer, "gradients", 0) for layer in layers]
        forward, backward = ([_figure(layer, name) / 1e3 for layer in layers] for name in ("forward_ms", "backward_ms"))
        if not sum(forward) + sum(backward):
            raise ConfigError("its layers took no time, from which none can be predicted", source)
        batch, threads = (_whole(times, name, 1) for name in ("batch", "threads"))
        beyond = _figure(times, "step_ms") / 1e3 - sum(forward) - sum(backward)
        update = max(0.0, beyond) * threads / max(1, FLOAT_BYTES * sum(floats))
        variation = _figure(times, "step_variation") if "step_variation" in times else None
        return Profile(str(times["net"]), batch, threads, forward, backward, floats, update, variation=variation)
    except KeyError as error:
        raise ConfigError(f"no {error} in it; engine time --json writes such files", source) from None
    except TypeError:  # a list or an entry is something else
        raise ConfigError(none, source) from None
    except ValueError as error:
        raise ConfigError(f"{none}: {error}", source) from None


def _figure(entries: dict[str, Any], name: str) -> float:
    """Returns a number of a profile. Raises KeyError, TypeError, ValueError."""
    value = entries[name]
    if not isinstance(value, int | float) or not 0 <= value <= MOST:
        raise ValueError(f"{name}: expected a number from 0 to {MOST:g}, got {value!r}")
    return value


def _whole(entries: dict[str, Any], name: str, least: int) -> int:
    """Returns a whole number of a profile. Raises KeyError, TypeError, ValueError."""
    value = entries[name]
    if not isinstance(value, int) or not least <= value <= MOST:
        raise ValueError(f"{name}: expected a whole number from {least} to {MOST:g}, got {value!r}")
    return value


def read_profile(path: str) -> Profile:
    """Reads a file of `engine time --json`. Raises ConfigError."""
    try:
        with open(path) as file:
            return measured(json.load(file), path)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot be read as a profile: {error}", path) from None


def from_flops(config: NetConfig, batch: int = 0) -> Profile:
    """Makes a profile for a machine that is not here. Its times are a second for every 1e12 floating-point operations:
    only their proportions count, until at_rate() scales them. Raises ConfigErrors. batch: 0: the net's."""
    graph = build(config, proto.TRAIN, shapes_of=SourceShapes(config.message, proto.TRAIN, log, batch))
    costs = layer_costs(graph)
    forward = [cost.flops / 1e12 for cost in costs]
    if not sum(forward):
        raise ConfigError("nothing to compute in phase TRAIN: no layer has floating-point operations", config.path)
    learned = [
        sum(parameter.count for parameter in layer.params if parameter.owner is None and parameter.learnable)
        for layer in graph.layers
    ]
    size = next((shape[0] for cost in costs for _, shape in cost.tops if shape), 1)
    backward = [BACKWARD * seconds for seconds in forward]
    return Profile(graph.name, size, THREADS, forward, backward, learned, UPDATE / FLOAT_BYTES)


def own_profile(config: NetConfig, iterations: int, precision: str, world: World) -> Profile:
    """Measures a profile now. Under mpiexec all ranks measure at once, without communication: ranks of one host slow
    each other down."""
    times: Times = benchmark(config, proto.TRAIN, iterations, World(), precision)
    return replace(measured(to_json(times), "this machine"), together=world.size > 1)


def measured_network(world: World) -> Network:
    """Collective. Measures the network of the ranks that are here."""
    mine, everyone = host_and_cores(), all_hosts_and_cores(world)
    sharing = everyone.count(mine)
    return calibrate.measure(world, len(mine[1]) * world.local_size / sharing, sharing)


# Predictions


@dataclass(frozen=True)
class Prediction:
    """What is predicted for a number of ranks. The best_ fields are of the best of BUCKETS_MB and SERVERS."""

    ranks: int
    step_ms: float
    images_per_second: float
    efficiency: float  # images per second / (ranks x those of one rank)
    exposed_ms: float  # what a step takes more than on a network that takes no time
    bucket_mb: float
    servers: int
    best_step_ms: float
    best_bucket_mb: float
    best_servers: int
    waiting_ms: float = 0.0  # how long the others wait for the slowest rank

    @property
    def compute_ms(self) -> float:
        """The time of a step that is neither exposed communication nor waiting: layers and updates."""
        return self.step_ms - self.exposed_ms - self.waiting_ms

    def minutes(self, images: float) -> float:
        """Returns the minutes in which so many images are trained."""
        return images / self.images_per_second / 60


def predict(
    profile: Profile,
    network: Network,
    ranks: int,
    param: proto.CommParameter | None = None,
    variation: float = 0.0,
) -> Prediction:
    """Predicts a step on a number of ranks. Raises ConfigError.

    Args:
        param: settings; those that it does not give follow from the link, as in training.
        variation: standard deviation of a rank's steps over their mean.
    """
    network = replace(network, ranks=ranks, ranks_per_node=min(ranks, network.ranks_per_node))
    if network.nodes > 1 and network.between is None:
        raise ConfigError(
            f"{ranks} ranks take {network.nodes} nodes, but only one was measured: give --latency and --bandwidth"
        )
    settings = settings_for(network, param)
    alone = seconds(profile, settings, replace(network, ranks=1, ranks_per_node=1))
    waiting = profile.compute * variation * slowest(ranks)
    step = seconds(profile, settings, network)
    free = replace(network, between=network.between and Link(), within=Link(), cpu=0.0)
    best, best_step = settings, step
    if ranks > 1:
        for servers in SERVERS:
            if network.cores and servers * network.ranks_per_node > network.cores:
                continue
            for size in BUCKETS_MB:
                nbytes = int(size * MB)
                other = replace(settings, servers=servers, bucket_bytes=nbytes, chunk_bytes=nbytes, cores=None)
                if (found := seconds(profile, other, network)) < best_step * (1 if best is not settings else GAIN):
                    best, best_step = other, found
    return Prediction(
        ranks,
        1e3 * (step + waiting),
        ranks * profile.batch / (step + waiting),
        alone / (step + waiting),
        1e3 * max(0.0, step - seconds(profile, settings, free)),
        settings.bucket_bytes / MB,
        settings.servers,
        1e3 * (best_step + waiting),
        best.bucket_bytes / MB,
        best.servers,
        1e3 * waiting,
    )


def slowest(ranks: int) -> float:
    """Returns how many standard deviations the slowest of so many ranks is behind their mean, on average: the expected
    largest of normal values, after Blom (1958), "Statistical Estimates and Transformed Beta-Variables"."""
    return statistics.NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def settings_for(network: Network, param: proto.CommParameter | None = None) -> CommSettings:
    """Returns the settings that training would choose on such a network."""
    links = Links(network.between if network.nodes > 1 else None, network.within)
    cores = max(1, int(network.cores) // network.ranks_per_node) if network.cores else None  # of a rank
    return comm_settings(param or proto.CommParameter(), links, 0, network.ranks_per_node, {}, cores)


def seconds(profile: Profile, settings: CommSettings, network: Network) -> float:
    """Returns the seconds of a step, without waiting for slower ranks."""
    buckets, work = schedule(profile, settings.bucket_bytes)
    return step_seconds(work, buckets, settings, network)


def schedule(profile: Profile, bucket_bytes: int) -> tuple[list[Bucket], Work]:
    """Returns the buckets as training cuts them, and the work of a step: which buckets each layer's forward waits for,
    and which are ready after its backward."""
    parameters, offset = [], 0
    for layer in reversed(range(len(profile.forward))):
        if profile.gradients[layer]:
            parameters.append((str(layer), offset, profile.gradients[layer]))
            offset += -(-profile.gradients[layer] // 16) * 16
    buckets = make_buckets(parameters, bucket_bytes)
    waits: list[list[int]] = [[] for _ in profile.forward]
    readies: list[list[int]] = [[] for _ in profile.forward]
    for bucket in buckets:
        layers = [int(one.name) for one in bucket.ranges]
        for layer in layers:
            waits[layer].append(bucket.index)
        readies[min(layers)].append(bucket.index)
    forward = [Op(seconds, waits[layer]) for layer, seconds in enumerate(profile.forward)]
    backward = [Op(seconds, (), readies[layer]) for layer, seconds in enumerate(profile.backward)]
    return buckets, Work(forward, backward[::-1], profile.update, profile.threads, profile.together)


# What it prints


def to_text(profile: Profile, network: Network, found: Sequence[Prediction], images: float = 0.0) -> str:
    """Returns text for people. images: of a whole training, whose minutes are a column; 0: there is no such column."""
    rows = [
        (
            each.ranks,
            f"{each.step_ms:.1f}",
            f"{each.images_per_second:.1f}",
            f"{100 * each.efficiency:.1f}%",
            f"{each.compute_ms:.1f}",
            f"{each.exposed_ms:.1f}",
            f"{each.waiting_ms:.1f}",
            *([f"{each.minutes(images):.1f}"] if images else []),
            f"{each.bucket_mb:g}",
            each.servers,
            f"{each.best_step_ms:.1f}",
            f"{each.best_bucket_mb:g}",
            each.best_servers,
        )
        for each in found
    ]
    header = ("ranks", "step ms", "images/s", "efficiency", "compute ms", "exposed ms", "waiting ms")
    header += (*(["minutes"] if images else []), "bucket MB", "servers")
    header += ("best step ms", "bucket MB", "servers")
    links = Links(network.between, network.within if network.ranks_per_node > 1 else None)
    return "\n".join(
        [
            f"{printable(profile.net)}, batch {profile.batch} per rank, {profile.threads} threads; compute "
            f"{1e3 * profile.compute:.1f} ms, {4e-6 * sum(profile.gradients):.1f} MB of gradients",
            f"network: {links}; {network.ranks_per_node} rank{'s' if network.ranks_per_node > 1 else ''} per node",
            table(header, rows, ">" * len(header)),
            "step = compute (layers, updates) + exposed (communication that it does not hide) + waiting (for others)",
            "best: of the bucket sizes and numbers of servers tried; comm_param { servers bucket_mb chunk_mb }",
        ]
    )


def to_dict(profile: Profile, network: Network, found: Sequence[Prediction], images: float = 0.0) -> dict[str, object]:
    """Returns the prediction for JSON. images: see to_text()."""
    minutes = [{"minutes": each.minutes(images)} if images else {} for each in found]
    predictions = [
        {**asdict(each), "compute_ms": each.compute_ms, **more} for each, more in zip(found, minutes, strict=True)
    ]
    return {"profile": asdict(profile), "network": asdict(network), "predictions": predictions}


def comm_param(text: str) -> proto.CommParameter:
    """Makes a CommParameter of fields as they stand in a solver. Raises ConfigError, also for one that simulate.py does
    not simulate."""
    message = proto.CommParameter()
    errors = fill(message, scan(text, "--comm"), "--comm")
    if errors:
        raise errors[0]
    others = {  # what simulate.py does not simulate, and whether the text has it
        f"mode: {message.Mode.Name(message.mode)} cannot be predicted; SYNC can": message.mode != message.SYNC,
        "algorithm: HIERARCHICAL cannot be predicted; PLAIN can": message.algorithm == message.HIERARCHICAL,
        "autotune: true cannot be predicted; what it tries can: give servers, bucket_mb, chunk_mb": message.autotune,
        "elastic cannot be predicted; without it, a run that no rank's death disturbs can": message.HasField("elastic"),
    }
    for other, is_there in others.items():
        if is_there:
            raise ConfigError(f"--comm: {other}")
    return message


def given_network(latency_us: float, gbits: float, ranks_per_node: int, cores: float) -> Network:
    """Makes a network of the command line's figures. It supposes that ranks of a node exchange through memory at no
    cost. Raises ConfigError."""
    if latency_us < 0 or gbits <= 0:
        raise ConfigError(f"expected a latency of 0 or more and a bandwidth above 0, got {latency_us:g} and {gbits:g}")
    return Network(1, Link(latency_us / 1e6, gbits * 1e9 / 8), ranks_per_node, cores=cores)
