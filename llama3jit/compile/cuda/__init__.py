"""GPU kernels as artifacts: units to cubins, with no GPU, and cubins to where they are wanted."""
