"""The log of link faults: both platforms write the entries of `pymodel.faults.log`."""

from pymodel.faults.log import LOG, counts, edits, render, text

__all__ = ["LOG", "counts", "edits", "render", "text"]
