"""A plan made again from what a run measured."""
