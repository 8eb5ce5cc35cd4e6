"""Everything the compiler can say about its own work: dumps, log lines, sources. No stage may import this package."""
