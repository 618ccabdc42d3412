"""Stages as graphs: F, B and W of a stage as functions cut out of one traced graph."""
