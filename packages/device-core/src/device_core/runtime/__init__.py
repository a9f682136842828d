"""The runtime: it links the methods of a program to memory and operators, and executes them."""
