"""The parts of a rank's pipeline: its role in the program, its options and its resources."""
