"""The private parts of torch that stages as graphs use.

Tried on torch 2.13; the joint export and its descriptors are there since 2.10. All of it is in this
folder, so that another version is looked at in one place.
"""
