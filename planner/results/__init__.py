"""Results of searches: schedules with their bounds and the candidates that were compared, tables,
explanations and certificates."""
