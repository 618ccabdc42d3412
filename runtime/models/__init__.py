"""Models by name: resolution of ``--model``, and Hugging Face models."""
