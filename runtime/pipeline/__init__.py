"""The public pipeline, and what it is made from."""
