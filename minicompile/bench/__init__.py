"""Measurements side by side: eager, `torch.compile` and minicompile. Uses only the public interface."""
