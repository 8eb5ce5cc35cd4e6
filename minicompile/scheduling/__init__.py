"""From loops to kernels: which loops share one, over which tiles, in what order, in which memory."""
