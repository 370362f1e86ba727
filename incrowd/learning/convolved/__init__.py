"""Stacks of convolutions with pooling, and Linear layers on top, computed without torch's convolutions.

| file     | what                                                   |
| -------- | ------------------------------------------------------ |
| `layers` | a module as a table of such layers                     |
| `loops`  | windows, pooling, and the ways back, in compiled loops |
| `net`    | the layers at work on a few examples                   |
"""
