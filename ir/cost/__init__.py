"""The cost model: times, memory and traffic of a schedule."""
