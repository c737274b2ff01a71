"""Who a client is: the subject to which its sessions and its limits belong."""

from __future__ import annotations

# The subject of all clients without tokens. Limits by subject do not apply to it.
ANONYMOUS = "anonymous"
# The begin of the ids of people whom an identity provider, a proxy or the app's backend names.
PERSON = "person-"
