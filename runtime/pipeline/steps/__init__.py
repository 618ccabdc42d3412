"""Steps of a pipeline on one rank, in training or evaluation: preparation, inputs, results."""
