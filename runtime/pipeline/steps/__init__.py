"""Steps of a pipeline on one rank: preparation for a program, shape inference, evaluation."""
