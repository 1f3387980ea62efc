"""Functional golden NIC: what one NIC does, step by step, without cycles, bytes on the wire or AXI.

It keeps contexts, doorbell state, the send queues, the responder and the CQs of nic.md sections 2 to 7 and
acts in steps (a packet sent, a packet or acknowledgement delivered, a READ response made, an atomic executed,
a CQE written) whose order its owner chooses; packets are objects and are not lost. The rules themselves come
from `pymodel.nic.rules`. A message that finds no receive WQE waits at its sender: there are no RNR NAKs.
"""

from pymodel.nic.golden.core import Packet
from pymodel.nic.golden.nic import GoldenNic, Step, StepKind

__all__ = ["GoldenNic", "Packet", "Step", "StepKind"]
