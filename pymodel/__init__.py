"""Software side of the suite: formats, golden NIC, device programs. Knows nothing of simulators."""
