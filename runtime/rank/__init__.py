"""What a rank's pipeline is created from: its part in the program, options and resources."""
