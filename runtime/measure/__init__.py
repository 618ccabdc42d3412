"""Measurements of steps: times of ops, bytes of activations, traces, deviations from the plan."""
