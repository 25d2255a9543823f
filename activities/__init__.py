"""What the world is and how to touch it: wire types, and one module per outside system."""
