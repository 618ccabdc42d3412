"""Runs stages as graphs: F, B and W of a stage are functions cut out of one traced graph."""
