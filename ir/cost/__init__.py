"""The cost model: times, memory and traffic of a schedule. Solver, verifiers, report and benchmarks
ask here."""
