"""What a site writes into its policy file, what is built in, and the plan that follows. No Temporal."""
