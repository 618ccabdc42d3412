"""The code that uses private parts of torch to trace and compile stages.

Tested with torch 2.13; the joint export and its descriptors exist since 2.10.
"""
