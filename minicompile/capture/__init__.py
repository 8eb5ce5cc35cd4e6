"""From unmodified Python to captured graphs, guards and the code that runs in place of the frame."""
