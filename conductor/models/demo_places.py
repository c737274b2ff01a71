"""The places whose time the demo model knows: well-known cities and the names of IANA zones."""

from __future__ import annotations

import re
import unicodedata

_CITIES = {
    "Amsterdam": "Europe/Amsterdam",
    "Athens": "Europe/Athens",
    "Auckland": "Pacific/Auckland",
    "Bangkok": "Asia/Bangkok",
    "Beijing": "Asia/Shanghai",
    "Berlin": "Europe/Berlin",
    "Bogotá": "America/Bogota",
    "Boston": "America/New_York",
    "Buenos Aires": "America/Argentina/Buenos_Aires",
    "Cairo": "Africa/Cairo",
    "Cape Town": "Africa/Johannesburg",
    "Chicago": "America/Chicago",
    "Copenhagen": "Europe/Copenhagen",
    "Delhi": "Asia/Kolkata",
    "Denver": "America/Denver",
    "Dubai": "Asia/Dubai",
    "Dublin": "Europe/Dublin",
    "Helsinki": "Europe/Helsinki",
    "Hong Kong": "Asia/Hong_Kong",
    "Honolulu": "Pacific/Honolulu",
    "Istanbul": "Europe/Istanbul",
    "Jakarta": "Asia/Jakarta",
    "Johannesburg": "Africa/Johannesburg",
    "Kathmandu": "Asia/Kathmandu",
    "Lagos": "Africa/Lagos",
    "Lima": "America/Lima",
    "Lisbon": "Europe/Lisbon",
    "London": "Europe/London",
    "Los Angeles": "America/Los_Angeles",
    "Madrid": "Europe/Madrid",
    "Manila": "Asia/Manila",
    "Melbourne": "Australia/Melbourne",
    "Mexico City": "America/Mexico_City",
    "Moscow": "Europe/Moscow",
    "Mumbai": "Asia/Kolkata",
    "Munich": "Europe/Berlin",
    "Nairobi": "Africa/Nairobi",
    "New York": "America/New_York",
    "Oslo": "Europe/Oslo",
    "Paris": "Europe/Paris",
    "Prague": "Europe/Prague",
    "Rome": "Europe/Rome",
    "San Francisco": "America/Los_Angeles",
    "São Paulo": "America/Sao_Paulo",
    "Seattle": "America/Los_Angeles",
    "Seoul": "Asia/Seoul",
    "Shanghai": "Asia/Shanghai",
    "Singapore": "Asia/Singapore",
    "Stockholm": "Europe/Stockholm",
    "Sydney": "Australia/Sydney",
    "Taipei": "Asia/Taipei",
    "Tokyo": "Asia/Tokyo",
    "Toronto": "America/Toronto",
    "Vancouver": "America/Vancouver",
    "Vienna": "Europe/Vienna",
    "Warsaw": "Europe/Warsaw",
    "Zurich": "Europe/Zurich",
}

_ZONE = re.compile(r"[A-Za-z_]{2,20}(?:/[A-Za-z0-9_+-]{1,30}){1,2}")


def _plain(name: str) -> str:
    """Fold case and accents: transcripts hold "Sao Paulo" and "são paulo" alike."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(mark for mark in decomposed if not unicodedata.combining(mark)).casefold().strip()


_BY_NAME = {_plain(city): (city, zone) for city, zone in _CITIES.items()}


def place(name: str) -> tuple[str, str] | None:
    """Return (how to say it, IANA zone) of a city, of "UTC", or of a zone's own name; None if unknown."""
    plain = _plain(name)
    if plain in ("utc", "gmt", "universal time", "greenwich"):
        return "UTC", "UTC"
    if found := _BY_NAME.get(plain):
        return found
    if _ZONE.fullmatch(name.strip()):
        zone = name.strip()
        return zone_name(zone), zone
    return None


def zone_name(zone: str) -> str:
    """Return how a person says a zone: "Asia/Ho_Chi_Minh" is "Ho Chi Minh"."""
    return zone.rpartition("/")[2].replace("_", " ")
