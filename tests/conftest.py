"""Before anything loads OpenMP's library: its idle threads shall sleep soon, so that a busy machine stays quick."""

from engine.host.cores import limit_spinning

limit_spinning()
