"""Times, memory and traces of a step."""
