"""The catalogue: one file a topic, one function a program. Nothing here may import a compiler."""
