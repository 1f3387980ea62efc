"""The golden NIC: parameters, contexts, rules and what is built on them."""
