"""This machine and this process: cores, memory, the launcher that started it, its terminal, what a signal does to it,
what comes before all else (startup), and the loading of the C++ extension."""
