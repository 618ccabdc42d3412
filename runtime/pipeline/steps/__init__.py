"""Steps of a pipeline on one rank, trained or evaluated: made ready, given inputs, read out."""
