"""What is so of a conversation, and what comes next: values and pure functions, which do nothing."""
