"""The cost model, asked by all others: times, memory and traffic of a schedule."""
