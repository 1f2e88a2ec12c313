"""Set before anything loads OpenMP's library: its idle threads sleep soon, so that tests on a busy machine stay quick."""

from engine.cores import limit_spinning

limit_spinning()
