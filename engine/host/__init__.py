"""This machine: its cores, the launcher that started this process, precision, and the loading of the C++ extension."""
