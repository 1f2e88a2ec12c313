"""The verbs of engine/tools as the command line calls them: each takes its options and returns an exit status."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from engine.verbs.runtime import asked_net, phase_of


def draw_net(options: Namespace) -> int:
    from engine.examine.summarize import net_graph
    from engine.report.draw_net import draw_net

    log = _log()
    config = asked_net(options, options.model)
    graph = net_graph(config, phase_of(options.phase), options.level or 0, options.stage)
    draw_net(graph, options.target, options.rankdir)
    log(f"Drawing net to {options.target}")
    return 0


def summarize(options: Namespace) -> int:
    from engine.examine.summarize import net_graph, summarize

    config = asked_net(options, options.model)
    print(summarize(net_graph(config, phase_of(options.phase), options.level or 0, options.stage)))
    for note in config.notes:
        print(f"note: {note}")
    return 0


def parse_log(options: Namespace) -> int:
    from engine.report.parse_log import write_csv

    log = _log()
    for path in write_csv(options.log, options.folder, options.delimiter):
        log(f"Wrote {path}")
    return 0


def plot_log(options: Namespace) -> int:
    from engine.report.plot_log import plot_logs

    log = _log()
    plot_logs(options.logs, options.target)
    log(f"Wrote {options.target}")
    return 0


def extract_features(options: Namespace) -> int:
    from engine.errors import shape_text
    from engine.inference.extract_features import extract_features
    from engine.report.progress import Progress

    log = _log()
    config = asked_net(options, options.model)
    with Progress("Extracting", line="Extracted features of {done} of {total} batches.") as progress:
        shapes = extract_features(
            config, options.weights, options.blobs, options.outputs, options.batches, progress=progress.update
        )
    for blob, shape in shapes.items():
        log(f"Extracted features of {shape[0]} query images for feature blob {blob}: {shape_text(shape)}")
    return 0


def classify(options: Namespace) -> int:
    from engine.inference.classify import Classifier, Preprocessing, best, read_labels

    _log()
    config = asked_net(options, options.model)
    labels = read_labels(options.labels) if options.labels else []
    asked = Preprocessing(options.images_dim, options.mean_file, options.mean_value, options.input_scale)
    classifier = Classifier(config, options.weights, asked)
    for image in options.images:
        print(f"---------- Prediction for {image} ----------")
        for score, label in best(classifier.scores(image), options.top, labels):
            print(f'{score:.4f} - "{label}"')
    return 0


def compare(options: Namespace) -> int:
    from engine.examine.compare import compare_files, compare_nets, to_text

    _log()
    found = [compare_files(*options.files)]
    if options.model:
        nets = tuple(asked_net(options, path) for path in (options.model, options.other_model or options.model))
        weights = tuple([path] for path in options.files)
        found.append(compare_nets(nets, weights, phase_of(options.phase), options.precision))
    print("\n\n".join(to_text(each, options.tolerance) for each in found))
    return int(any(each.first_beyond(options.tolerance) for each in found))


def upgrade_net_proto_text(options: Namespace) -> int:
    from engine.config.upgrade_files import upgrade_net_text

    return _upgrade(options, upgrade_net_text, "NetParameter text proto")


def upgrade_net_proto_binary(options: Namespace) -> int:
    from engine.config.upgrade_files import upgrade_net_binary

    return _upgrade(options, upgrade_net_binary, "NetParameter binary proto")


def upgrade_solver_proto_text(options: Namespace) -> int:
    from engine.config.upgrade_files import upgrade_solver_text

    return _upgrade(options, upgrade_solver_text, "SolverParameter text proto")


def _upgrade(options: Namespace, upgrade: Callable[[str, str], list[str]], kind: str) -> int:
    log = _log()
    for note in upgrade(options.source, options.target) or [f"File already in latest proto format: {options.source}"]:
        log(note)
    log(f"Wrote upgraded {kind} to {options.target}")
    return 0


def _log() -> Callable[[str], None]:
    from engine.report.log import log, set_up

    set_up()
    return log


VERBS = {
    verb.__name__: verb
    for verb in (
        draw_net,
        summarize,
        classify,
        extract_features,
        compare,
        parse_log,
        plot_log,
        upgrade_net_proto_text,
        upgrade_net_proto_binary,
        upgrade_solver_proto_text,
    )
}
