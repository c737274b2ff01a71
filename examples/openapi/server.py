"""An MCP server of the operations of an OpenAPI document: ``python server.py DOCUMENT``.

It needs ``pip install fastmcp``. ``API_URL`` replaces the document's first server.
"""

import json
import os
import sys
from pathlib import Path

from fastmcp import FastMCP

document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
if url := os.environ.get("API_URL"):
    document["servers"] = [{"url": url}]
FastMCP.from_openapi(document, name="pets").run(show_banner=False)
