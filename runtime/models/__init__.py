"""Model sources by name (the option ``--model``), and Hugging Face models as model sources."""
