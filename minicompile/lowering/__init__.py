"""ATen primitives to loop IR; what has no rule stays a call of the ATen operator."""
