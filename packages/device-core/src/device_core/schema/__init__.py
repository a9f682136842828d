"""The program format: types, expressions of sizes, validation, and reading and writing of program folders."""
