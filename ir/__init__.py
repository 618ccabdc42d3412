"""The vocabulary of pipeloom, its cost model, file formats and verifiers."""
