"""Results of searches, with what they were compared with; tables; explanations and certificates."""
