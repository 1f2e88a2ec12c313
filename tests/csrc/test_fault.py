"""A fault in a file that is mapped into memory ends the process with status 1 and a line that names the file. Other
faults are left alone."""

import os
import signal
import subprocess
import sys

import pytest

from tests.mpi import REPO

START = """
import ctypes, mmap, os, resource, signal, socket, sys, threading
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from engine.host import _core
libc = ctypes.CDLL(None)
libc.fputs.argtypes = ctypes.c_char_p, ctypes.c_void_p
stderr = ctypes.c_void_p.in_dll(libc, "stderr")
def read(key=b"the key"):
    _core.reading("a.prototxt:1:1: LMDB db", key)
"""
SANITIZED = pytest.mark.skipif("ENGINE_SANITIZED" in os.environ, reason="the sanitizer reports faults itself")
DEFERRED = pytest.mark.skipif("TSAN_OPTIONS" in os.environ, reason="the sanitizer of threads puts signals off")
LINE = "engine: a.prototxt:1:1: LMDB db: key 'the key': the file is damaged, or has been cut off; copy it again\n"


def run(program: str, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, *options, "-c", START + program]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60)


def test_a_file_that_is_cut_off(tmp_path):
    path = tmp_path / "mapped"
    path.write_bytes(bytes(3 * 4096))
    done = run(f"""
file = open({str(path)!r}, "r+b")
mapped = mmap.mmap(file.fileno(), 0)
os.truncate({str(path)!r}, 4096)
read()
mapped[4096]
""")
    assert (done.returncode, done.stderr) == (1, LINE)


@pytest.mark.parametrize("fault", ["ctypes.string_at(0)", "ctypes.string_at(1 << 60)", "os.abort()"])
def test_what_a_damaged_file_may_come_to(fault):
    done = run(f"read()\n{fault}")
    assert (done.returncode, done.stderr) == (1, LINE)


FORKED = """_core.reading("", b"", 1)
_core.done_reading()
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@DEFERRED
@pytest.mark.parametrize("begin", ["", FORKED], ids=["first process", "forked process"])
def test_a_library_that_never_comes_back(begin):
    """It uses its second of processor time in C, where Python's signal handlers do not run."""
    done = run(f"{begin}_core.reading('HDF5 file x.h5', b'', 1)\nsum(range(10**12))")
    assert (done.returncode, done.stderr) == (1, "engine: HDF5 file x.h5" + LINE.partition("key'")[2])


def test_time_that_is_not_the_file_s():
    """Neither waiting nor what runs after reading is counted."""
    program = "import time\n_core.reading('f', b'', 1)\ntime.sleep(1.5)\n_core.done_reading()\n"
    done = run(f"{program}begin = time.process_time()\nwhile time.process_time() < begin + 1.5: pass\nprint('end')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_in_another_thread():
    done = run(
        "def work():\n    read()\n    ctypes.string_at(0)\nthreading.Thread(target=work).start()\nsignal.pause()"
    )
    assert (done.returncode, done.stderr) == (1, LINE)


@pytest.mark.parametrize("key, shown", [("b''", ""), (r"b'\x1b[2J\xc3\xa9'", r": key '\x1b[2J\xc3\xa9'")])
def test_keys_are_of_any_bytes(key, shown):
    done = run(f"read({key})\nos.abort()")
    assert done.stderr == LINE.replace(": key 'the key'", shown)


def test_keys_are_of_any_length():
    done = run("read(bytes(5000))\nos.abort()")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stderr.endswith("; copy it again\n")


@SANITIZED
@pytest.mark.parametrize(
    "program",
    [
        "ctypes.string_at(0)",
        "read()\n_core.done_reading()\nctypes.string_at(0)",
        "threading.Thread(target=lambda: (read(), signal.pause())).start()\nctypes.string_at(0)",
        "read()\nos.system(f'kill -SEGV {os.getpid()}')\nsignal.pause()",
    ],
    ids=["before", "after", "another thread's", "sent by another process"],
)
def test_other_faults_are_as_ever(program):
    done = run(program)
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")


@SANITIZED
@pytest.mark.parametrize("fault, number", [("ctypes.string_at(0)", signal.SIGSEGV), ("os.abort()", signal.SIGABRT)])
def test_pythons_fault_handler_goes_on(fault, number):
    done = run(f"read()\n_core.done_reading()\n{fault}", "-X", "faulthandler")
    assert done.returncode == -number and "Fatal Python error" in done.stderr and "<module>" in done.stderr
    assert (done := run(f"read()\n{fault}", "-X", "faulthandler")).stderr == LINE


@pytest.mark.parametrize("answer, said", [("first", LINE.replace("engine:", "engine: [rank 3]")), ("late", "")])
def test_one_process_of_many_speaks(answer, said):
    done = run(f"""
own, other = socket.socketpair()
_core.speak_as("[rank 3] ", -1, own.fileno())
def answer():
    assert other.recv(16) == b"fail\\n"
    other.sendall(b"{answer}\\n")
answering = threading.Thread(target=answer, daemon=True)
answering.start()
def work():
    read()
    libc.abort()  # without Python's lock
threading.Thread(target=work).start()
signal.pause()
""")
    assert (done.returncode, done.stderr) == (1, said)


@DEFERRED
def test_who_ends_all_processes_speaks():
    done = run("""
heard, told = os.pipe()
_core.speak_as("[rank 3] ", told, -1)
def end():
    os.write(1, os.read(heard, 10000))
    os._exit(7)
def work():
    read()
    libc.abort()  # without Python's lock
for target in (end, work, work):
    threading.Thread(target=target).start()
signal.pause()
""")
    assert (done.returncode, done.stdout, done.stderr) == (7, LINE.replace("engine:", "engine: [rank 3]"), "")


def test_who_should_speak_does_not():
    done = run("heard, told = os.pipe()\n_core.speak_as('', told, -1)\nread()\nos.abort()")
    assert (done.returncode, done.stderr) == (1, LINE)


def test_one_thread_of_many_speaks():
    done = run("""
def work():
    read()
    libc.abort()
for _ in range(8):
    threading.Thread(target=work).start()
signal.pause()
""")
    assert (done.returncode, done.stderr) == (1, LINE)


def test_nobody_answers():
    done = run(
        "own, other = socket.socketpair()\n_core.speak_as('', -1, own.fileno())\nother.close()\nread()\nos.abort()"
    )
    assert (done.returncode, done.stderr) == (1, LINE)


@DEFERRED
def test_what_libraries_say_about_it_is_lost():
    done = run("_core.hold_stderr(True)\nread()\nlibc.fputs(b'Assertion failed', stderr)\nos.abort()")
    assert done.stderr == LINE


def test_what_libraries_say_otherwise_comes():
    done = run("""
_core.hold_stderr(True)
libc.fputs(b"held, ", stderr)
sys.stderr.write("Python, ")
sys.stderr.flush()
_core.hold_stderr(False)
libc.fputs(b"at once", stderr)
os._exit(0)
""")
    assert (done.returncode, done.stderr) == (0, "Python, held, at once")
