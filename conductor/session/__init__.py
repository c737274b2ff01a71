"""What is done about a conversation: its tasks, commits, connections and requests."""
