"""A stand-in for a SearXNG server: ``/search`` in the JSON that SearXNG gives, and 403 for other formats."""

from __future__ import annotations

from typing import Any

from aiohttp import web


def searxng(count: int = 20) -> Any:
    """Make the handler of requests (`tests.stand_ins.web_site.site`); each search has ``count`` results."""

    def answer(request: web.Request) -> web.Response:
        if request.path != "/search" or request.query.get("format") != "json":
            return web.Response(status=403)
        results = [
            {
                "url": f"https://e.example/{number}",
                "title": f"T{number}",
                "content": "c" * 1_000,
                "engine": "stand-in",
                "category": "general",
                "score": 1.0 / (number + 1),
            }
            for number in range(count)
        ]
        more: dict[str, Any] = {
            "answers": [],
            "corrections": [],
            "infoboxes": [],
            "suggestions": [],
            "unresponsive_engines": [],
        }
        document = {"query": request.query["q"], "number_of_results": count, "results": results}
        return web.json_response(document | more)

    return answer
