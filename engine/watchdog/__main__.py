"""Runs a sentinel. It is started by the path of its folder and without site-packages, so the folder that holds `engine`
is added to the path of imports."""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from engine.watchdog.guard import main

    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
