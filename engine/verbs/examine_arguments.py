"""Command-line arguments of the verbs in engine/examine. Imports nothing heavy."""

from __future__ import annotations

from engine.verbs.options import above_zero, add_budget, add_common, add_running, add_verb, number, positive, positives


def _add_time(verbs) -> None:
    verb = add_verb(
        verbs,
        "time",
        "measure the layers of a net, and whole training steps",
        "Times every layer forward and backward, and whole steps (forward, backward, update), on synthetic input with "
        "the shapes of the net's data; the data itself is not needed. Times are medians; the first iteration is "
        "reported separately.",
        "engine time --model nets/resnet50.prototxt --iterations 20\n"
        "engine time --model net.prototxt --phase TEST --json times.json",
    )
    verb.add_argument("--model", required=True, metavar="FILE", help="the net, a prototxt")
    verb.add_argument("--phase", choices=["TRAIN", "TEST"], default="TRAIN", help="TEST: forward only (default: TRAIN)")
    verb.add_argument("--iterations", type=positive, default=10, metavar="N", help="timed iterations (default: 10)")
    add_budget(verb)
    verb.add_argument("--json", metavar="FILE", help="also write everything as JSON ('-': standard output)")
    add_running(verb)


def _add_verify(verbs) -> None:
    verb = add_verb(
        verbs,
        "verify",
        "compare training on several ranks with training on one",
        "Trains on N ranks, which it starts itself, and on one rank that takes the batches of all of them in turn "
        "(with bn_sync at once), and compares all gradients and weights after every iteration. If they differ, the "
        "first such layer is named and the exit status is 1.",
        "engine verify --solver solvers/digits.prototxt --ranks 2\n"
        "engine verify --solver solver.prototxt --ranks 4 --set comm_param.algorithm=HIERARCHICAL\n"
        "srun -n 64 engine verify --solver solver.prototxt --iterations 3",
    )
    verb.add_argument("--solver", required=True, metavar="FILE", help="the solver, a prototxt")
    verb.add_argument("--ranks", type=positive, metavar="N", help="ranks to start here (default: the launcher's)")
    verb.add_argument("--iterations", type=positive, default=5, metavar="N", help="iterations to compare (default: 5)")
    verb.add_argument(
        "--tolerance",
        type=above_zero,
        default=0.0,
        metavar="X",
        help="largest difference, relative to the parameter's largest element (default: 1e-4; 0.2 with bf16)",
    )
    add_running(verb)


def _add_predict(verbs) -> None:
    verb = add_verb(
        verbs,
        "predict",
        "predict how fast a net would train on more ranks, or on another network",
        "Simulates training steps on a network of given latency and bandwidth, from the layer times of one rank: "
        "measured here, read from a --profile, or scaled to the --images_per_second of another machine. Under mpiexec, "
        "a network that is not given is measured. Prints step time, efficiency, exposed communication, and the best "
        "bucket size and number of servers.",
        "engine predict --model nets/resnet50.prototxt --ranks 2,4,8,16 --latency 1.5 --bandwidth 100\n"
        "engine predict --model nets/resnet50.prototxt --ranks 256 --images_per_second 60 --latency 1 --bandwidth 100\n"
        "mpiexec -n 2 engine predict --model nets/resnet50.prototxt --profile times.json --ranks 2,64",
    )
    verb.add_argument("--model", metavar="FILE", help="the net, a prototxt; not needed with --profile")
    verb.add_argument("--profile", metavar="FILE", help="what engine time --json wrote (default: measured now)")
    verb.add_argument("--ranks", type=positives, required=True, metavar="A,B", help="numbers of ranks")
    verb.add_argument(
        "--batch", type=positive, metavar="N", help="batch per rank (default: the profile's, or the net's)"
    )
    verb.add_argument("--images_per_second", type=above_zero, metavar="X", help="speed of one rank on another machine")
    verb.add_argument("--latency", type=number, metavar="US", help="latency of a message between nodes, microseconds")
    verb.add_argument("--bandwidth", type=above_zero, metavar="GBIT", help="bandwidth of a node, each way, Gbit/s")
    verb.add_argument("--ranks_per_node", type=positive, default=1, metavar="N", help="default: 1")
    verb.add_argument(
        "--cores", type=number, default=0, metavar="N", help="cores of a node (default: those that compute)"
    )
    verb.add_argument(
        "--iterations", type=positive, default=5, metavar="N", help="timed iterations of the profile (default: 5)"
    )
    verb.add_argument("--comm", default="", metavar="FIELDS", help="fields of comm_param: 'servers: 4 bucket_mb: 8'")
    verb.add_argument("--json", metavar="FILE", help="also write everything as JSON ('-': standard output)")
    add_running(verb)


def _add_check(verbs) -> None:
    verb = add_verb(
        verbs,
        "check",
        "find the errors in nets and solvers, and show what they cost",
        "Reads nets or solvers, builds their graphs for training and testing without their data, and prints layers, "
        "shapes, parameters, FLOPs and memory. All errors of all files are reported; the exit status is then 1. Where "
        "a data source is missing, the shape of the images is taken from crop_size and the mean values.",
        "engine check solvers/*.prototxt\nengine check nets/resnet50.prototxt --json\nengine check --run models/",
    )
    verb.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a net or a solver (recognised by its content), or a folder, for all .prototxt files below it",
    )
    verb.add_argument(
        "--run",
        action="store_true",
        help="take one training or test step of each net on synthetic data, in a separate process, and print a line "
        "that says whether it runs",
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    add_common(verb)


def _add_device_query(verbs) -> None:
    verb = add_verb(
        verbs,
        "device_query",
        "show what this machine offers",
        "Prints the processor, the cores that this process may use, its memory, and the versions of oneDNN and MPI.",
        "engine device_query\nengine device_query --json",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")


def _add_doctor(verbs) -> None:
    verb = add_verb(
        verbs,
        "doctor",
        "check that the ranks fit together; show who runs on which cores, and the measured link",
        "Runs only the checks that training makes before its first iteration: compares the ranks' versions and, with "
        "--solver, their solver, nets and parameter layouts; checks an allreduce whose result is known; measures the "
        "link. A difference ends it with status 1 and a line that names two ranks and what differs; only layouts may "
        "differ, with the processors: training then keeps plain ones.",
        "engine doctor\nmpiexec -n 4 engine doctor\nsrun engine doctor --solver solvers/resnet50_448nodes.prototxt",
    )
    verb.add_argument("--solver", metavar="FILE", help="a solver whose nets and comm_param are to be checked, too")
    verb.add_argument("--json", metavar="FILE", help="also write everything as JSON ('-': standard output)")
    verb.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="override a field (repeatable)")


ADD = (
    _add_time,
    _add_verify,
    _add_predict,
    _add_check,
    _add_device_query,
    _add_doctor,
)
