"""What the machine and the process are asked about themselves."""

import os
import subprocess
import sys
import time

from engine.host import machine


def test_memory_is_what_there_is():
    assert machine.memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_interrupts_take_some_time():
    assert 0 <= machine.interrupt_seconds() <= os.cpu_count() * time.clock_gettime(time.CLOCK_BOOTTIME)


def test_the_processor_has_a_name():
    assert machine.processor()


def test_a_process_knows_its_age():
    code = "import time; time.sleep(0.5); from engine.host.machine import process_age; print(process_age())"
    begin = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 0.5 < age < time.monotonic() - begin + 0.02  # starttime counts in clock ticks
