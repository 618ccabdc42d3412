"""What a schedule costs: step, memory, traffic, bound."""
