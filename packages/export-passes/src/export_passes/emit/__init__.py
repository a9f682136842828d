"""From planned graphs to the program format: values, constants and instructions."""
