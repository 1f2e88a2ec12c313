"""This machine and this process: cores, memory, the launcher that started it, its terminal, what a signal does to it,
what a program does before all else (startup.py), and the loading of the C++ extension."""
