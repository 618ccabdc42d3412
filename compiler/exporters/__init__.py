"""Other systems' formats."""
