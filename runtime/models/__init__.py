"""Models by name: where a ``--model`` is looked up, and the models of Hugging Face."""
