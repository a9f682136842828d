"""Devices, allocators, the program format and its runtime."""
