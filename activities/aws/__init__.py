"""EC2 and Auto Scaling: instances, their owners, capacity and successors."""
