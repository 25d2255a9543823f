"""The role `intake`: signals of every source in, incidents out. A source is one module."""
