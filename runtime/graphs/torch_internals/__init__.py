"""The private parts of torch that graphs use, collected in this folder.

Tested with torch 2.13; the joint export and its descriptors exist since 2.10.
"""
