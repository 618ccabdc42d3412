"""Verifiers of schedules, programs and certificates, independent of the code that creates them."""
