"""Who may do it, and with which credentials: settings, connections and one module per role."""
