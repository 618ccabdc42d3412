"""The routes of ``optimize``: functions that each answer one kind of request, such as a choice
among placements, cuts, or schemes (activations, weights or sharded data)."""
