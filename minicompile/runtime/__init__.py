"""Programs to callables: caches, kernel binaries, launching, autograd binding. Nothing here decides what is computed."""
