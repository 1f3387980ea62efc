"""pyuvm components over the batch-oriented testbench: agents, scoreboards, environment, base test, sequences.

Everything works on batches: one `write()` per drained batch of records, never one per record or beat.
"""
