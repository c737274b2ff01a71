"""Log lines, metrics, the audit log and traces of sessions, as functions of their records."""
