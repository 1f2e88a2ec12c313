"""Copies of a source on each host: used only when whole, made once, kept or removed."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from engine import proto
from engine.comm.world import World
from engine.config import parse_net
from engine.data import open_data, staging
from engine.data.convert_imageset import Output, convert_imageset
from engine.data.feeder import Feeder
from engine.data.registry import open_source
from engine.data.shards import expand
from engine.data.staging import CopyShare, release, staged
from engine.errors import ConfigError, DataError
from tests.data.test_sources import MAKERS, layer, make_tar
from tests.mpi import REPO, run_ranks


@pytest.fixture(autouse=True)
def nothing_is_held():
    yield
    release()


@pytest.fixture
def made(image_folder, tmp_path):
    def make(name):
        _, path, maker = MAKERS[name]
        if maker:
            maker(image_folder, tmp_path / path)
        return f"{tmp_path}/{path}"

    return make


def items(path):
    source = open_source(str(path))
    found = [source.item(number)[1] for number in range(len(source))]
    return [proto.Datum.FromString(each) if isinstance(each, bytes) else each for each in found]


def copy_of(source, stage, share=None, keep=False, part=False):
    return staged(source, str(stage), share or CopyShare(), keep=keep, part=part)


@pytest.mark.parametrize("name", MAKERS)
def test_a_copy_holds_the_same_items_and_goes_at_the_end(made, tmp_path, name):
    source = made(name)
    copied = copy_of(source, tmp_path / "stage")
    assert copied.startswith(str(tmp_path / "stage")) and items(copied) == items(source)
    release()
    assert list((tmp_path / "stage").iterdir()) == []


def test_a_copy_that_is_kept_is_used_again_while_it_is_whole(made, tmp_path):
    def made_when():
        copied = copy_of(source, tmp_path / "stage", keep=True)
        release()
        (copy,) = (tmp_path / "stage").iterdir()
        return os.stat(copied).st_ino, copy, copied

    source = made("tar")
    first, copy, copied = made_when()
    assert made_when()[0] == first and list((tmp_path / "stage").iterdir()) == [copy]
    os.truncate(copied, 5000)
    made_when()
    assert os.path.getsize(copied) == os.path.getsize(source) > 5000
    (copy / staging.LIST).write_text("{}")
    made_when()
    os.utime(source, ns=(1, 1))
    _, copy, copied = made_when()
    assert json.loads((copy / staging.LIST).read_text())["source"] == [[source, os.path.getsize(source), 1]]
    assert items(copied) == items(source)


def test_the_layer_reads_its_copy(made, tmp_path):
    source = made("lmdb")
    message = layer(source, f'stage: "{tmp_path}/stage" stage_keep: true')
    opened = open_data(message, proto.TEST, share=CopyShare())
    expected = open_data(layer(source), proto.TEST)
    assert Path(opened.reader._source.path).parent == tmp_path / "stage"
    with opened.batches(12) as mine, expected.batches(12) as others:
        assert np.array_equal(next(mine).arrays["data"][0], next(others).arrays["data"][0])
    shutil.rmtree(tmp_path / "stage")
    open_data(message, proto.TEST)  # opened as `engine check` does it: nothing is copied
    assert not (tmp_path / "stage").exists()
    for field in ("stage_keep: true", "stage_part: true"):
        with pytest.raises(ConfigError, match="stage_keep and stage_part need stage: the folder to copy to"):
            open_data(layer(source, field), proto.TEST)


def test_one_copies_and_the_others_wait(made, tmp_path, monkeypatch):
    source, copies = made("tar"), []
    original = staging._copy_all
    monkeypatch.setattr(staging, "_copy_all", lambda *args: (copies.append(1), time.sleep(0.2), original(*args)))
    found = []
    threads = [
        threading.Thread(
            target=lambda share: found.append(copy_of(source, tmp_path / "stage", share)),
            args=(CopyShare(rank, (0, 1, 2, 3)),),
        )
        for rank in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert copies == [1] and len(set(found)) == 1 and len(found) == 4


def test_a_copy_of_a_folder_with_links_to_class_folders(image_folder, tmp_path):
    os.rename(image_folder / "bee", tmp_path / "elsewhere")
    (image_folder / "bee").symlink_to(tmp_path / "elsewhere")
    copied = copy_of(str(image_folder), tmp_path / "stage")
    assert items(copied) == items(image_folder) and len(items(copied)) == 12


def test_a_copy_of_a_folder_with_one_class(image_folder, tmp_path):
    for name in ("ant", "cat"):
        shutil.rmtree(image_folder / name)
    copied = copy_of(str(image_folder), tmp_path / "stage")
    assert items(copied) == items(image_folder) and open_source(copied).classes == ["bee"]


@pytest.mark.parametrize("source", ["?/*/x.tar", "a/{b,c*}/x.tar", "[a]/b/x.tar", "{a,../elsewhere/a}/b/x.tar"])
def test_a_copy_of_folders_that_a_pattern_names(image_folder, tmp_path, monkeypatch, source):
    """All matching files may lie in one folder. Its name must still be part of the copy's path, because other copies
    lie beside it."""
    for folder in ("data/a/b", "data/a/c", "elsewhere/a/b", "stage/x.tar.other"):
        (tmp_path / folder).mkdir(parents=True)
        if folder != "data/a/c" or "c*" in source:
            make_tar(image_folder, tmp_path / folder / "x.tar")
    monkeypatch.chdir(tmp_path / "data")
    copied = copy_of(source, tmp_path / "stage")
    assert ".." not in Path(copied).parts and items(copied) == items(source)
    assert len(expand(copied)) == len(expand(source)) == 1 + source.count(",")


@pytest.mark.parametrize("part", [False, True])
def test_those_who_wait_see_that_a_copy_is_compared(made, tmp_path, monkeypatch, part):
    told, original = [], staging._Teller.__call__
    monkeypatch.setattr(staging._Teller, "__call__", lambda self, done: (told.append(done), original(self, done)))
    copy_of(made("lmdb"), tmp_path / "stage", part=part)
    assert told.count(told[-1]) > 1, "told while it is copied, and again while it is compared"


def test_the_watchdogs_of_all_ranks_see_that_a_copy_gets_on(made, tmp_path, monkeypatch):
    def slow(file, to, tell):
        for _ in range(12):
            time.sleep(0.05)
            tell(0)
        return original(file, to, tell)

    original, worlds = staging._copy_file, [World(), World()]
    monkeypatch.setattr(staging, "_copy_file", slow)
    monkeypatch.setattr(staging, "_SHOW_SECONDS", 0.1)
    text = f'source: "{made("tar")}" stage: "{tmp_path}/stage" batch_size: 2'
    config = parse_net(f'layer {{ name: "data" type: "Data" top: "data" top: "label" data_param {{ {text} }} }}')
    feeders = [Feeder(config, proto.TEST, 1, world) for world in worlds]
    threads = [threading.Thread(target=each.shapes_of, args=(config.message.layer[0], "here")) for each in feeders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(world.board.beats()[0] for world in worlds) >= 3, "of the one that copies, and of the one that waits"


@contextlib.contextmanager
def another_reads(source, stage, cwd):
    """Yields the path of the copy while another process reads it."""
    code = (
        f"import sys; sys.path.insert(0, {str(REPO)!r}); from engine.data.staging import CopyShare, staged\n"
        f"print(staged({source!r}, {str(stage)!r}, CopyShare(), keep=False, part=False), flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin and other.stdout
        yield other.stdout.readline().strip()
        other.stdin.close()
        assert other.wait(60) == 0


@pytest.mark.parametrize("spelled", ["{}", "./a.tar", "a.tar"])
def test_what_another_process_reads_stays(made, tmp_path, spelled):
    source = made("tar")
    with another_reads(spelled.format(source), tmp_path / "stage", os.path.dirname(source)) as copied:
        assert copy_of(source, tmp_path / "stage") == copied
        release()
        assert os.path.exists(copied), "the other one reads it"
    assert list((tmp_path / "stage").iterdir()) == [], "the last one removes it"


def test_what_another_process_reads_stays_where_the_source_changes(made, tmp_path):
    source = made("tar")
    with another_reads(source, tmp_path / "stage", REPO) as copied:
        for time_ns in (1, 2):
            os.utime(source, ns=(time_ns, time_ns))
            newer = copy_of(source, tmp_path / "stage", keep=True)
            assert newer != copied and os.path.exists(copied) and items(newer) == items(source)
            release()
        assert len(list((tmp_path / "stage").iterdir())) == 2, "of those that nobody reads, the older one is gone"
    assert list((tmp_path / "stage").iterdir()) == [Path(newer).parent]


def test_a_copy_that_is_read_and_not_whole_any_more(made, tmp_path):
    source = made("tar")
    copied = copy_of(source, tmp_path / "stage")
    os.truncate(copied, 5000)
    with pytest.raises(DataError, match=r"stage/a.tar.\S+ is read, but no longer whole; end what reads it, or name"):
        copy_of(source, tmp_path / "stage")
    shutil.rmtree(Path(copied).parent)
    assert items(copy_of(source, tmp_path / "stage")) == items(source)
    assert not staging._is_unused(Path(copied).parent), "what is locked is the new one"


def test_a_copy_of_a_process_that_was_killed_is_never_used(made, tmp_path):
    source = made("tar")
    code = (
        "import os, signal; from engine.data import staging\n"
        "def kill(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        "staging._write_list = kill\n"
        f"staging.staged({source!r}, {str(tmp_path / 'stage')!r}, staging.CopyShare(), keep=True, part=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, timeout=60)
    assert done.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "stage").iterdir()
    assert left.name.endswith(".partial") and (left / "a.tar").stat().st_size == os.path.getsize(source)
    (left / "a.tar").write_bytes(b"half")
    copied = copy_of(source, tmp_path / "stage")
    assert items(copied) == items(source) and not left.exists()


KILLED = """
import os, signal, sys, time
from engine import proto
from engine.comm.world import world
from engine.config import parse_net
from engine.data import staging
from engine.data.feeder import Feeder

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if {in_copy}:
    staging._write_list = kill
world = world()
world.watch(60)
net = parse_net({net!r})
feeder = Feeder(net, proto.TRAIN, 1, world)
for message in net.message.layer:
    feeder.shapes_of(message, "net")
world.barrier()
print("a copy", flush=True)
if world.rank == world.size - 1:
    kill()
time.sleep(60)
"""


@pytest.mark.parametrize("in_copy", [False, True])
@pytest.mark.parametrize(
    ("ranks", "keeps"),
    [
        *((1, keeps) for keeps in ("0", "1", "01", "10")),
        *(pytest.param(2, keeps, marks=pytest.mark.mpi) for keeps in ("01", "10")),
    ],
)
def test_ranks_that_are_killed_leave_no_copy(made, tmp_path, ranks, in_copy, keeps):
    """The copy stays if one of the layers that read it has stage_keep."""
    stage, source = tmp_path / "a stage", made("tar")
    net = "".join(
        f'layer {{ name: "data{number}" type: "Data" top: "x{number}" top: "y{number}" '
        f'data_param {{ source: "{source}" batch_size: 2 stage: "{stage}" stage_keep: {keep} }} }}\n'
        for number, keep in enumerate(keeps)
    )
    keep = "1" in (keeps[0] if in_copy else keeps)
    program = KILLED.format(in_copy=in_copy, net=net)
    if ranks == 1:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)
    else:
        done = run_ranks(ranks, program)
    assert done.returncode != 0 and in_copy == ("a copy" not in done.stdout), done.stderr
    end = time.monotonic() + (1 if keep else 10)
    while os.listdir(stage) and time.monotonic() < end:
        time.sleep(0.1)
    assert bool(os.listdir(stage)) == keep


def test_too_little_space_is_said_before(made, tmp_path, monkeypatch):
    source = made("tar")
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 5_000))
    with pytest.raises(DataError, match=r"stage .*stage: .*a.tar takes 0 MB, 0 MB are free there, of which a copy .*"):
        copy_of(source, tmp_path / "stage")
    assert list((tmp_path / "stage").iterdir()) == []


def test_a_copy_leaves_room_to_others(made, tmp_path, monkeypatch):
    source = made("tar")
    size = os.path.getsize(source)
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, size + 10))
    with pytest.raises(DataError, match=r"of which a copy takes nine tenths at most; name another place, or set"):
        copy_of(source, tmp_path / "stage")
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9 * size))
    monkeypatch.setattr(staging, "available_memory", lambda: 2 * size - 2)
    assert items(copy_of(source, tmp_path / "stage")) == items(source)
    release()
    assert staging._is_memory(Path("/dev/shm")) and not staging._is_memory(Path("/proc"))
    monkeypatch.setattr(staging, "_is_memory", lambda folder: True)
    with pytest.raises(DataError, match=r"of which a copy takes half at most; name another place, or set stage_part"):
        copy_of(source, tmp_path / "stage")


def test_folders_are_not_made_above_that_of_the_copies(made, tmp_path):
    with pytest.raises(DataError, match=r"stage .*a/b: there is no folder .*a; make it, or name"):
        copy_of(made("tar"), tmp_path / "a/b")
    assert not (tmp_path / "a").exists()


def test_a_copy_that_others_could_have_made_is_not_read(made, tmp_path, monkeypatch):
    source = made("tar")
    copied = copy_of(source, tmp_path / "stage", keep=True)
    release()
    (copy,) = (tmp_path / "stage").iterdir()
    stamp = json.loads((copy / staging.LIST).read_text())["source"]
    assert staging._is_whole(copy, stamp)
    os.rename(copy, tmp_path / "elsewhere")
    copy.symlink_to(tmp_path / "elsewhere")
    assert os.path.exists(copied) and not staging._is_whole(copy, stamp)
    copy.unlink()
    os.rename(tmp_path / "elsewhere", copy)
    copy.chmod(0o770)
    assert not staging._is_whole(copy, stamp)
    copy.chmod(0o700)
    monkeypatch.setattr(staging.os, "getuid", lambda: os.geteuid() + 1)
    assert not staging._is_whole(copy, stamp)


def test_a_file_without_end_is_not_copied(image_folder, tmp_path):
    (image_folder / "ant/endless.png").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"ant/endless.png: cannot be read: it is no regular file"):
        copy_of(str(image_folder), tmp_path / "stage")


def test_file_systems_without_locks(made, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    source = made("tar")
    assert items(copy_of(source, tmp_path / "stage")) == items(source)
    release()
    (copy,) = (tmp_path / "stage").iterdir()
    assert f"{copy} stays after the run: it cannot be locked: No locks available" in caplog.text


@pytest.mark.parametrize("part", [False, True])
def test_a_disk_that_is_full_in_the_middle(made, tmp_path, monkeypatch, part):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = made("tar")
    if part:
        from engine.data import lmdb_writer

        monkeypatch.setattr(lmdb_writer._Writer, "put", full)
    else:
        monkeypatch.setattr(staging, "_copy_file", full)
    with pytest.raises(
        DataError, match=r"the disk was full after 0 MB of \d+ MB; .* are free now that what was copied"
    ):
        copy_of(source, tmp_path / "stage", part=part)
    assert list((tmp_path / "stage").iterdir()) == []


def test_a_copy_that_differs_is_refused(made, tmp_path, monkeypatch):
    source = made("tar")
    monkeypatch.setattr(staging, "_checksum", lambda path, tell: (1, os.path.getsize(path)))
    with pytest.raises(DataError, match=r"the copy of .*a.tar differs from it: is the disk sound\?"):
        copy_of(source, tmp_path / "stage")
    assert list((tmp_path / "stage").iterdir()) == []


def test_a_source_that_changes_while_it_is_copied(made, tmp_path, monkeypatch):
    source, original = made("tar"), staging._write_list
    monkeypatch.setattr(staging, "_write_list", lambda *args: (original(*args), os.utime(source, ns=(1, 1))))
    with pytest.raises(DataError, match=r"a.tar has changed while it was copied"):
        copy_of(source, tmp_path / "stage")
    assert list((tmp_path / "stage").iterdir()) == []


@pytest.mark.parametrize("stage", ["file/below", "file"])
def test_where_no_copy_can_be(made, tmp_path, stage):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"stage .*file.*: (there is no folder .*file|File exists)"):
        copy_of(made("tar"), tmp_path / stage)


# stage_part


@pytest.mark.parametrize("name", ["lmdb", "tar", "leveldb"])
def test_parts_are_the_items_of_one_host_each(made, tmp_path, name):
    source = made(name)
    parts = [copy_of(source, tmp_path / f"stage{host}", CopyShare(0, (host,), host, 5), part=True) for host in range(5)]
    assert [items(part) for part in parts] == [items(source)[host::5] for host in range(5)]
    with pytest.raises(DataError, match=r"has 12 items for 13 hosts: stage_part needs one for each"):
        copy_of(source, tmp_path / "stage", CopyShare(0, (12,), 12, 13), part=True)


def test_ranks_of_a_host_share_its_part(made, tmp_path):
    """Two hosts have two ranks each. An epoch of a host is its half of the items, each once, also after a resume."""
    source = made("lmdb")

    def open_rank(rank):
        message = layer(source, f'shuffle: true stage: "{tmp_path}/stage{rank // 2}" stage_part: true stage_keep: true')
        share = CopyShare(rank % 2, (rank // 2 * 2, rank // 2 * 2 + 1), rank // 2, 2)
        return open_data(message, proto.TRAIN, seed=5, rank=rank, ranks=4, share=share)

    def keys(rank, start=0, batches=6):
        with open_rank(rank).batches(1, rank, 4, start) as found:
            return [next(found).keys[0] for _ in range(batches)]

    original = [key for key, _ in map(open_source(source).item, range(12))]
    by_rank = [keys(rank) for rank in range(4)]
    for host in range(2):
        mixed = [key for pair in zip(*by_rank[2 * host : 2 * host + 2]) for key in pair]
        for epoch in (mixed[:6], mixed[6:]):
            assert sorted(key[9:] for key in epoch) == original[host::2]
        assert mixed[:6] != mixed[6:]
    assert [keys(rank, start=8, batches=4) for rank in range(4)] == [each[2:] for each in by_rank]
    assert [open_rank(rank).own_size for rank in range(4)] == [3] * 4


def test_a_part_has_the_names_of_the_classes_and_the_fields_that_are_named(image_folder, tmp_path):
    def read(fields, part=True):
        text = f'{fields} stage: "{tmp_path}/stage" stage_part: true stage_keep: true' if part else fields
        opened = open_data(layer(source, text), proto.TEST, share=CopyShare(0, (0,), 1, 2))
        with opened.batches(opened.size) as batches:
            return opened.reader.classes, [array.copy() for array in next(batches).arrays["data"]]

    source = image_folder
    assert read("")[0] == read("", part=False)[0] == ["ant", "bee", "cat"]
    assert read("")[0] == ["ant", "bee", "cat"], "of the copy that is there"
    source = tmp_path / "a.tar"
    with tarfile.open(source, "w") as tar:
        for number in range(4):
            for extension, text in (("cls", f"{number}"), ("age", f"{20 + number}")):
                (tmp_path / "label").write_text(text)
                tar.add(tmp_path / "label", f"{number}.{extension}")
            tar.add(image_folder / f"ant/{number}.png", f"{number}.png")
    for fields in ('field: "png" field: "age"', 'field: "png" field: "cls"'):
        _, (pictures, labels) = read(fields)
        _, (all_pictures, all_labels) = read(fields, part=False)
        assert np.array_equal(labels, all_labels[1::2]) and np.array_equal(pictures, all_pictures[1::2])
    assert labels.tolist() == [1, 3]


def test_a_source_of_each_rank_is_not_divided_again(made, tmp_path):
    source = made("lmdb")
    os.rename(source, f"{source}0")
    message = layer(f"{source}%#", f'stage: "{tmp_path}/stage" stage_part: true')
    with pytest.raises(ConfigError, match="a source with %# is each rank's own already: take stage_part out"):
        open_data(message, proto.TRAIN, ranks=2, share=CopyShare(0, (0,), 0, 2))


def test_sizes_of_parts_add_up(image_folder, tmp_path):
    (image_folder / "ant/0.png").unlink()
    convert_imageset(str(image_folder), None, str(tmp_path / "db"), Output(encoded=True))
    sizes = []
    for rank in range(6):
        message = layer(tmp_path / "db", f'stage: "{tmp_path}/stage{rank // 3}" stage_part: true stage_keep: true')
        share = CopyShare(rank % 3, tuple(range(rank // 3 * 3, rank // 3 * 3 + 3)), rank // 3, 2)
        sizes.append(open_data(message, proto.TRAIN, rank=rank, ranks=6, share=share).own_size)
    assert sum(sizes) == 11 and max(sizes) == 2
