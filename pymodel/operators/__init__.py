"""CAM's MoE operators: host layer (checks, tiling), API layer, and kernels in window and in SHMEM mode."""
