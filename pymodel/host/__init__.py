"""Host side: what has to stand in device memory and in the NIC before a device program runs."""
