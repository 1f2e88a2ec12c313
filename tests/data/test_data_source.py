"""open_data(): opens a Data layer, given as text, and makes batches."""

import os
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from engine import proto
from engine.data import open_data, shapes_without_data
from engine.data.convert_imageset import convert_imageset
from engine.data.mean import write_mean
from engine.data.sampler import Sampler
from engine.errors import ConfigError, DataError
from tests.data.pictures import bgr, encoded_datum, random_pixels, raw_datum

AUGMENTED = "mirror: true crop_size: 10 mean_value: 3 scale: 0.5"


@pytest.fixture
def lmdb_path(image_folder, tmp_path):
    """Converts 12 images to an LMDB: four for each of the labels 0, 1 and 2; image i is random_pixels(10 * label + i %
    4)."""
    convert_imageset(str(image_folder), None, str(tmp_path / "lmdb"))
    return tmp_path / "lmdb"


def take(source, batches, *args, **options):
    """Returns the first batches as a list of (data, labels, keys, first sample)."""
    with source.batches(*args, **options) as prefetcher:
        found = []
        for batch in islice(prefetcher, batches):
            data, labels = batch.arrays["data"]
            found.append((data.copy(), labels.copy(), batch.keys, batch.first_sample))
        return found


def joined(batches):
    return np.concatenate([data for data, *_ in batches]), [key for _, _, keys, _ in batches for key in keys]


def test_batches_hold_the_images_in_order(lmdb_path, open_layer):
    source = open_layer(lmdb_path, data="backend: LMDB")
    assert (source.size, source.shapes) == (12, ((3, 12, 16), ()))
    (data, labels, keys, first), (_, later, _, second) = take(source, 2, 8)
    for i in range(8):
        assert np.array_equal(data[i], bgr(random_pixels(10 * (i // 4) + i % 4)))
    assert labels.dtype == np.float32
    assert labels.tolist() == [0] * 4 + [1] * 4 and later.tolist() == [2] * 4 + [0] * 4
    assert keys[0] == "00000000_ant/0.png" and (first, second) == (0, 8)


def test_buffers_are_aligned_and_dense(lmdb_path, open_layer):
    with open_layer(lmdb_path, "crop_size: 5").batches(3) as prefetcher:
        for _ in range(6):
            batch = prefetcher.next()
            data, labels = batch.arrays["data"]
            assert data.shape == (3, 3, 5, 5) and data.flags.c_contiguous and batch.size == 3
            assert data.ctypes.data % 64 == labels.ctypes.data % 64 == 0


def test_a_batch_stays_valid_until_the_next_one(lmdb_path, open_layer):
    with open_layer(lmdb_path, data="prefetch: 1").batches(5, threads=3) as prefetcher:
        for _ in range(30):
            batch = prefetcher.next()
            before = batch.arrays["data"][0].copy()
            for _ in range(3):
                os.sched_yield()
            assert np.array_equal(batch.arrays["data"][0], before)


def test_content_does_not_depend_on_threads_or_ranks(lmdb_path, open_layer):
    def augmented():
        return open_layer(lmdb_path, AUGMENTED, "shuffle: true", proto.TRAIN, seed=5)

    data, keys = joined(take(augmented(), 9, 8, threads=1))
    for threads in (2, 5):
        other, other_keys = joined(take(augmented(), 9, 8, threads=threads))
        assert np.array_equal(other, data) and other_keys == keys
    ranks = [take(augmented(), 9, 4, rank=rank, ranks=2) for rank in range(2)]
    other, other_keys = joined([batch for pair in zip(*ranks) for batch in pair])
    assert np.array_equal(other, data) and other_keys == keys
    resumed, resumed_keys = joined(take(augmented(), 4, 6, start=24))
    assert np.array_equal(resumed, data[24:48]) and resumed_keys == keys[24:48]


def test_augmentation_changes_with_epoch_and_seed(lmdb_path, open_layer):
    def epochs(seed):
        return [data for data, *_ in take(open_layer(lmdb_path, AUGMENTED, phase=proto.TRAIN, seed=seed), 2, 12)]

    first, second = epochs(1)
    assert not np.array_equal(first, second) and not np.array_equal(first, epochs(2)[0])


def test_test_phase_does_not_augment(lmdb_path, open_layer):
    first, second = take(open_layer(lmdb_path, AUGMENTED), 2, 12)
    assert np.array_equal(first[0], second[0])


@pytest.mark.parametrize(("batch_size", "ranks"), [(5, 1), (12, 1), (5, 2), (3, 3), (7, 3)])
def test_epoch_covers_everything_once(lmdb_path, open_layer, batch_size, ranks):
    source = open_layer(lmdb_path)
    keys = []
    for rank in range(ranks):
        with source.epoch(batch_size, rank, ranks) as prefetcher:
            sizes = []
            for batch in prefetcher:
                assert len(batch.arrays["data"][0]) == len(batch.arrays["data"][1]) == len(batch.keys) == batch.size
                sizes.append(batch.size)
                keys += batch.keys
        assert all(size == batch_size for size in sizes[:-1])
    assert len(keys) == len(set(keys)) == 12


def test_rand_skip_begins_later_and_only_in_train(lmdb_path, open_layer):
    begin = {
        seed: take(open_layer(lmdb_path, data="rand_skip: 6", phase=proto.TRAIN, seed=seed), 1, 1) for seed in range(30)
    }
    keys = {batches[0][2][0][:8] for batches in begin.values()}
    assert keys == {f"{i:08d}" for i in range(6)}
    assert take(open_layer(lmdb_path, data="rand_skip: 6", seed=3), 1, 1)[0][2][0][:8] == "00000000"


def test_rank_and_ranks_in_the_path(image_folder, tmp_path, open_layer):
    for rank, name in enumerate(["ant", "bee"]):
        (tmp_path / "list").write_text("".join(f"{name}/{i}.png {rank}\n" for i in range(4)))
        convert_imageset(str(image_folder), str(tmp_path / "list"), str(tmp_path / f"part{rank}of2"))
    for rank, name in enumerate(["ant", "bee"]):
        source = open_layer(f"{tmp_path}/part%#of%*", rank=rank, ranks=2)
        batches = take(source, 2, 2, rank=rank, ranks=2)
        assert [key[9:] for _, _, keys, _ in batches for key in keys] == [f"{name}/{i}.png" for i in range(4)]
        assert [first for *_, first in batches] == [2 * rank, 2 * rank + 4]
        with source.epoch(3, rank, 2) as prefetcher:
            assert [batch.size for batch in prefetcher] == [3, 1]


@pytest.fixture
def with_bad_images(make_lmdb):
    """Makes an LMDB of 5 images, of which 1 and 2 are damaged."""
    items = {f"{i}_x": encoded_datum(random_pixels(i), label=i) for i in range(5)}
    items["1_x"] = items["1_x"][:-40]
    items["2_x"] = proto.Datum(data=b"not an image", encoded=True, label=2).SerializeToString()
    return make_lmdb(items)


@pytest.mark.parametrize("threads", [1, 4])
def test_undecodable_image_is_an_error_in_its_turn(with_bad_images, open_layer, threads):
    source = open_layer(with_bad_images, where="net:3:1")
    with source.batches(1, threads=threads) as prefetcher:
        assert prefetcher.next().keys == ["0_x"]
        for _ in range(2):
            with pytest.raises(DataError, match=r"^net:3:1: .*lmdb: key '1_x': "):
                prefetcher.next()
    with source.batches(5, threads=threads) as prefetcher, pytest.raises(DataError, match="key '1_x'"):
        prefetcher.next()


def test_skipped_images_are_counted_and_replaced_by_the_next(with_bad_images, open_layer):
    source = open_layer(with_bad_images, skip_bad_images=True)
    batches = take(source, 2, 5)
    assert [keys for _, _, keys, _ in batches] == [["0_x", "3_x", "3_x", "3_x", "4_x"]] * 2
    assert batches[0][1].tolist() == [0, 3, 3, 3, 4]
    skipped = dict(source.skipped.values())
    assert sorted(skipped) == ["1_x", "2_x"] and "cannot decode" in skipped["2_x"]


def test_nothing_but_bad_images(make_lmdb, open_layer):
    path = make_lmdb({"a": b"\xff\xff", "b": b"\xff\xff"})
    with pytest.raises(DataError, match="none of its 2 images can be decoded"):
        open_layer(path, skip_bad_images=True)


def test_images_of_various_sizes(make_lmdb, open_layer):
    path = make_lmdb({"a": raw_datum(random_pixels(1)), "b": raw_datum(random_pixels(1, 11, 16))})
    source = open_layer(path, skip_bad_images=True)
    message = "key 'b': expected an image of 3 x 12 x 16, like the first one; got 3 x 11 x 16; set crop_size"
    with source.batches(2) as prefetcher, pytest.raises(DataError, match=message):
        prefetcher.next()
    assert open_layer(path, "resize_param { height: 8 width: 8 }").shapes[0] == (3, 8, 8)
    assert take(open_layer(path, "crop_size: 9"), 1, 2)[0][0].shape == (2, 3, 9, 9)


def test_no_memory_for_an_item(lmdb_path, open_layer, monkeypatch):
    def apply(*_):
        raise MemoryError

    source = open_layer(lmdb_path, where="net:3:1")
    monkeypatch.setattr(source.reader._transformer, "apply", apply)
    expected = r"^net:3:1: .*lmdb: key '00000000_ant/0.png': it is too large for the memory"
    with source.batches(2) as prefetcher, pytest.raises(DataError, match=expected):
        prefetcher.next()


def test_no_memory_for_an_item_without_a_key(lmdb_path, open_layer, monkeypatch):
    def load(*_):
        raise MemoryError

    source = open_layer(lmdb_path)
    monkeypatch.setattr(source.reader, "load", load)
    with source.batches(2) as prefetcher, pytest.raises(DataError, match=r"^layer 'data': item 0: it is too large for"):
        prefetcher.next()


def test_no_memory_for_an_order(lmdb_path, open_layer, monkeypatch):
    order = Sampler._order

    def first_only(sampler, epoch):
        if epoch:
            raise MemoryError
        return order(sampler, epoch)

    monkeypatch.setattr(Sampler, "_order", first_only)
    with open_layer(lmdb_path, "", "shuffle: true").batches(5, threads=2) as prefetcher:
        assert [prefetcher.next().size for _ in range(2)] == [5, 5]
        with pytest.raises(DataError, match=r"^layer 'data': the order of its 12 samples: it is too large for the mem"):
            prefetcher.next()


def test_what_ranks_compare(lmdb_path, open_layer):
    whole = "12 items, keys '00000000_ant/0.png' to '00000011_cat/3.png'"
    assert open_layer(lmdb_path).identity() == whole
    assert open_layer(lmdb_path, "mirror: true", "shuffle: true", ranks=2, rank=1).identity() == whole
    lmdb_path.rename(lmdb_path.with_name("part_1"))
    own = open_layer(lmdb_path.with_name("part_%#"), rank=1, ranks=2)
    assert own.reader.identity() == whole and own.identity() == ""


def test_parameters_that_cannot_be_used(lmdb_path, open_layer):
    with pytest.raises(ConfigError, match=r"^net:3:1: data_param.source is missing"):
        open_layer("", where="net:3:1")
    with pytest.raises(DataError, match=r"is no LEVELDB, but of type LMDB: set backend: LMDB, or leave it out"):
        open_layer(lmdb_path, data="backend: LEVELDB")


@pytest.mark.parametrize("threads", ["0", "two", "-1", "²", pytest.param("1" * 5000, id="5000 digits")])
def test_environment_sets_the_threads(lmdb_path, open_layer, monkeypatch, threads):
    monkeypatch.setenv("ENGINE_DATA_THREADS", "3")
    with open_layer(lmdb_path).batches(2) as prefetcher:
        assert len(prefetcher._threads) == 3
    monkeypatch.setenv("ENGINE_DATA_THREADS", threads)
    with pytest.raises(ConfigError, match="ENGINE_DATA_THREADS must be a whole number from 1 to 1024"):
        open_layer(lmdb_path).batches(2)


def test_close_stops_threads_that_wait(lmdb_path, open_layer):
    prefetcher = open_layer(lmdb_path).batches(2, threads=3)
    prefetcher.next()
    prefetcher.close()
    assert not any(thread.is_alive() for thread in prefetcher._threads)
    with pytest.raises(StopIteration):
        prefetcher.next()


def test_a_process_that_is_forked_reads_nothing(lmdb_path):
    """It would wait for threads that were not forked with it, or for a lock that one of them held."""
    code = f"""
import os, signal
from engine import proto
from engine.data import open_data
from engine.errors import DataError
layer = proto.LayerParameter(name="data", type="Data")
layer.data_param.source = {str(lmdb_path)!r}
prefetcher = open_data(layer, proto.TEST).batches(2, threads=2)
prefetcher.next()
child = os.fork()
if child == 0:
    signal.alarm(50)
    try:
        prefetcher.next()
    except DataError as error:
        print(error, flush=True)
    prefetcher.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
prefetcher.next()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = "layer 'data': its data are read by the process that this one was forked from; make the net, or "
    assert done.stdout == expected + "the solver, after the fork\n"


def test_a_process_ends_without_close(lmdb_path):
    """Threads that still wait must not keep a process from ending, for instance after an exception."""
    code = f"""
from engine import proto
from engine.data import open_data
layer = proto.LayerParameter(type="Data")
layer.data_param.source = {str(lmdb_path)!r}
prefetcher = open_data(layer, proto.TEST).batches(2, threads=2)
prefetcher.next()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_shapes_without_data(tmp_path):
    def shape(transform, source="/none"):
        layer = proto.LayerParameter(type="Data")
        layer.data_param.source = source
        for name, value in transform.items():
            if name == "mean_value":
                layer.transform_param.mean_value.extend(value)
            else:
                setattr(layer.transform_param, name, value)
        return shapes_without_data(layer, "net:3:1")[0]

    assert shape({"crop_size": 224, "mean_value": [104, 117, 123]}) == (3, 224, 224)
    assert shape({"crop_size": 28, "force_gray": True}) == (1, 28, 28)
    assert shape({"crop_h": 5, "crop_w": 6}) == (3, 5, 6)
    write_mean(str(tmp_path / "mean"), np.zeros((1, 28, 28), np.float32))
    assert shape({"mean_file": str(tmp_path / "mean")}) == (1, 28, 28)
    assert shape({"mean_file": str(tmp_path / "mean"), "crop_size": 24}) == (1, 24, 24)
    with pytest.raises(ConfigError, match=r"^net:3:1: the size of the images is unknown: source /none is not there"):
        shape({"mean_file": "/none"})


def test_opening_the_same_layer_for_both_phases(lmdb_path):
    layer = proto.LayerParameter(type="Data")
    layer.data_param.source = str(lmdb_path)
    train, test = (open_data(layer, phase) for phase in (proto.TRAIN, proto.TEST))
    assert train.shapes == test.shapes


def test_several_labels_as_a_datum_of_floats(make_lmdb, open_layer):
    """The labels are in a database of their own, which a Data layer with one top reads."""
    labels = np.random.RandomState(0).randn(3, 5).astype(np.float32)
    items = {
        f"{i}": proto.Datum(channels=5, height=1, width=1, float_data=row).SerializeToString()
        for i, row in enumerate(labels)
    }
    with open_layer(make_lmdb(items), "scale: 2").batches(3) as batches:
        assert np.array_equal(batches.next().arrays["data"][0], 2 * labels.reshape(3, 5, 1, 1))


@pytest.mark.parametrize("first", ["grey", "coloured"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "raw"])
def test_others_get_the_colours_of_the_first(make_lmdb, open_layer, kind, first):
    pictures = [random_pixels(1, channels=1), random_pixels(2), random_pixels(3, channels=1), random_pixels(4)]
    if first == "coloured":
        pictures = pictures[1:]
    store = raw_datum if kind == "raw" else lambda pixels: encoded_datum(pixels, kind)
    source = open_layer(make_lmdb({f"{n}": store(pixels) for n, pixels in enumerate(pictures)}), "crop_size: 10")
    with source.batches(len(pictures)) as batches:
        data = batches.next().arrays["data"][0]
    alike = [n for n, pixels in enumerate(pictures) if pixels.shape == pictures[0].shape]
    assert data.shape == (len(pictures), pictures[0].shape[2], 10, 10)
    assert source.recoloured == len(pictures) - len(alike)
    greys = [pixels if pixels.shape[2] == 1 else pixels @ [0.299, 0.587, 0.114] for pixels in pictures]
    for n, grey in enumerate(greys):
        inner = grey.reshape(12, 16)[1:11, 3:13]
        got = (
            data[n]
            if len(data[n]) == 1 or pictures[n].shape[2] == 1
            else data[n].transpose(1, 2, 0) @ [0.114, 0.587, 0.299]
        )
        assert np.abs(got - inner).mean() < (3 if kind == "JPEG" else 0.6)
