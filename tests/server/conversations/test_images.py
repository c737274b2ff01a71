"""Images of tools and of the person: two turns see them, and bad ones are refused in words."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any

import pytest

from conductor.server.websocket import EventRate
from conductor.session.inbound import InboundResult
from conductor.settings import Limits
from tests.app import Shown
from tests.dialogues import DEVICE, begin, call, declared, results_of, talking
from tests.models import AnthropicService, JsonObject, Reply
from tests.pictures import JPEG, WEBP, broken_png, jpeg_of, on_the_wire, png, webp_of
from tests.serving import provider_for, serving

SNAP = declared("snap", readOnlyHint=True)
PICTURE = png(640, 480)
GONE = "[an image that is no longer shown: image/png, "


def snaps(*images: dict[str, str], text: str | None = "a photo") -> Any:
    return {"snap": lambda _: Shown(text, images)}


def images_of(request: JsonObject) -> list[tuple[str, bytes]]:
    """List the images of a request, in the order of its blocks."""
    found: list[tuple[str, bytes]] = []
    for message in request["messages"]:
        blocks = message["content"]
        for block in [*blocks, *(part for b in blocks if b["type"] == "tool_result" for part in parts_of(b))]:
            if block["type"] == "image":
                found.append((block["source"]["media_type"], b64decode(block["source"]["data"])))
    return found


def parts_of(block: JsonObject) -> list[JsonObject]:
    return [] if isinstance(block["content"], str) else block["content"]


async def test_two_turns_see_an_image_and_then_it_is_a_line_of_text(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("snap"),)), *(Reply(text="Yes.") for _ in range(3))]
    device = snaps(on_the_wire(PICTURE))
    async with talking(claude, "images", tools=[SNAP], device=device) as phone:
        for words in ("what do you see?", "is it blue?", "and now?"):
            await phone.ask(words)
        assert not phone.errors()
    _, first, second, third = claude.requests
    assert images_of(first) == images_of(second) == [("image/png", PICTURE)]
    assert images_of(third) == [] and GONE in json.dumps(third)


async def test_a_transcript_may_carry_images(claude: AnthropicService) -> None:
    claude.replies.append(Reply(text="A cat."))
    async with talking(claude, "images") as phone:
        phone.say("what is this?", images=[on_the_wire(WEBP, "image/webp"), on_the_wire(JPEG, "image/jpeg")])
        await phone.until("assistant.speech.final")
    assert images_of(claude.requests[0]) == [("image/webp", WEBP), ("image/jpeg", JPEG)]


BAD = {
    "another type": (on_the_wire(JPEG), "is called image/png, and its first bytes are image/jpeg"),
    "no image": (on_the_wire(b"<svg/>"), "is called image/png, and its first bytes are no image"),
    "an unknown type": (on_the_wire(b"GIF89a", "image/gif"), "none of image/jpeg, image/png, image/webp"),
    "no base64": ({"mimeType": "image/png", "data": "**"}, "not base64"),
    "a PNG bomb": (on_the_wire(png(4_000, 4_000)), "4,000 x 4,000 pixels"),
    "a JPEG bomb": (on_the_wire(jpeg_of(5_000, 5_000), "image/jpeg"), "5,000 x 5,000 pixels"),
    "a WebP bomb": (on_the_wire(webp_of(16_000, 1_000), "image/webp"), "16,000 x 1,000 pixels"),
    "too much": (on_the_wire(png(noise=800_000)), "the most is 1,048,576"),
}


@pytest.mark.parametrize(("image", "why"), BAD.values(), ids=BAD)
async def test_the_model_reads_why_an_image_of_a_result_was_refused(
    claude: AnthropicService, image: dict[str, str], why: str
) -> None:
    claude.replies += [Reply(calls=(call("snap"),)), Reply(text="I see nothing.")]
    device = snaps(on_the_wire(PICTURE), image)
    async with talking(claude, "images", "diagnostics", tools=[SNAP], device=device) as phone:
        await phone.ask("what do you see?")
        (told,) = phone.events("diagnostic")
    assert told["payload"]["code"] == "refused_image" and why in told["payload"]["message"]
    (read,) = results_of(claude.requests[-1])
    assert read["success"] and read["data"] == "a photo" and why in read["metadata"]["notes"][0]
    assert images_of(claude.requests[-1]) == [("image/png", PICTURE)]


async def test_a_person_who_shows_a_damaged_image_gets_answers(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="I could not open it."), Reply(text="No."), Reply(text="A cat.")]
    async with talking(claude, "images", "diagnostics") as phone:
        phone.say("what is this?", images=[on_the_wire(broken_png())])
        await phone.until("assistant.speech.final", text="I could not open it.")
        await phone.ask("is it blue?")
        phone.say("and this?", images=[on_the_wire(PICTURE)])
        await phone.until("assistant.speech.final", text="A cat.")
        assert not phone.errors()
    assert "Could not process image" in claude.refused.popleft() and not claude.refused
    assert [images_of(request) for request in claude.requests] == [[], [], [("image/png", PICTURE)]]
    assert "[an image that the model's service refused: image/png, " in json.dumps(claude.requests[0])


OTHER_FORMS = {
    "null": None,
    "a text": "x",
    "an object": {"url": "http://a/b.png"},
    "texts": ["http://a/b.png"],
    "an image without data": [{"mimeType": "image/png"}],
    "a long type": [{"mimeType": "x" * 65, "data": ""}],
}


@pytest.mark.parametrize("capabilities", [("images",), ()], ids=["with images", "without"])
@pytest.mark.parametrize("images", OTHER_FORMS.values(), ids=OTHER_FORMS)
async def test_a_result_counts_whatever_its_images_are(
    claude: AnthropicService, images: Any, capabilities: tuple[str, ...]
) -> None:
    claude.replies += [Reply(calls=(call("snap"),)), Reply(text="I see nothing.")]
    device = {"snap": lambda _: Shown("a photo", images)}
    async with talking(claude, *capabilities, tools=[SNAP], device=device) as phone:
        await phone.ask("what do you see?")
        assert not phone.errors()
    (read,) = results_of(claude.requests[-1])
    assert read["success"] and read["data"] == "a photo"
    assert ("image" in str(read["metadata"].get("notes"))) == bool(capabilities and images)


@pytest.mark.parametrize("images", OTHER_FORMS.values(), ids=OTHER_FORMS)
async def test_a_reconnect_with_images_of_another_form_starts(claude: AnthropicService, images: Any) -> None:
    claude.replies += [Reply(calls=(call("snap"),)), Reply(text="I see nothing.")]
    async with talking(claude, "images", "resume", tools=[SNAP]) as phone:
        phone.say("what do you see?")
        asked = await phone.until("snap")
        done = [{"callId": asked["payload"]["callId"], "result": "a photo", "images": images}]
        phone.send("session.start", {"capabilities": ["images", "resume"], "resume": {"done": done}})
        await phone.until("assistant.speech.final", text="I see nothing.")
    (read,) = results_of(claude.requests[-1])
    assert read["data"] == "a photo"


@pytest.mark.parametrize("capabilities", [("images",), ()], ids=["with images", "without"])
@pytest.mark.parametrize("images", OTHER_FORMS.values(), ids=OTHER_FORMS)
async def test_words_count_whatever_their_images_are(
    claude: AnthropicService, images: Any, capabilities: tuple[str, ...]
) -> None:
    claude.replies.append(Reply(text="Hello."))
    async with talking(claude, *capabilities, tools=[SNAP]) as phone:
        phone.send("user.audio.transcript.final", {"text": "hi there", "images": images})
        await phone.until("assistant.speech.final", text="Hello.")
        assert not phone.errors()


@pytest.mark.parametrize("card", [True, False], ids=["a card", "a spoken question"])
@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_the_model_sees_what_the_person_shows_with_an_answer(
    claude: AnthropicService, answer: str, card: bool
) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="I see.")]
    capabilities = ("images", "approval") if card else ("images",)
    shown = [] if card else [on_the_wire(WEBP, "image/webp")]
    async with talking(claude, *capabilities, device=DEVICE, heard_window=0.0) as phone:
        phone.say("move it")
        if card:
            asked = await phone.until("approval.request")
            phone.send("approval.shown", {"approvalId": asked["payload"]["approvalId"]})
        else:
            asked = await phone.until("state idle", since=await phone.until("tts.speak"))
            phone.say("hm, I mean...", images=shown)
            await phone.until("state idle", since=await phone.until("tts.speak", since=asked))
        phone.say(answer, images=[on_the_wire(PICTURE)])
        await phone.until("assistant.speech.final", text="I see.")
        assert phone.runs == ([("move_file", {"path": "a"})] if answer == "yes" else [])
    request = claude.requests[-1]
    assert images_of(request) == [*(("image/webp", WEBP) for _ in shown), ("image/png", PICTURE)]
    (read,) = results_of(request)
    first = "The first image" if card else "The first 2 images"
    assert f"{first} of this result came from the user" in str(read["metadata"]["notes"])


async def test_a_backchannel_with_an_image_is_no_backchannel(claude: AnthropicService) -> None:
    claude.replies += [Reply(text="It is by the window."), Reply(text="A cat.")]
    device = {"tts.speak": lambda arguments: None}
    async with talking(claude, "images", "pause", device=device) as phone:
        phone.say("where is it?")
        spoken = await phone.until("tts.speak")
        phone.pause(speechId=spoken["payload"]["callId"], spokenText="It is")
        phone.say("mhm", images=[on_the_wire(PICTURE)])
        await phone.until("assistant.speech.final", text="A cat.")
        assert phone.events("audio.output.resume") == []
    assert images_of(claude.requests[-1]) == [("image/png", PICTURE)]


async def test_of_four_images_of_a_transcript_three_are_shown(claude: AnthropicService) -> None:
    claude.replies.append(Reply(text="Three cats."))
    pictures = [png(seed=number) for number in range(4)]
    async with talking(claude, "images") as phone:
        phone.say("what are these?", images=[on_the_wire(picture) for picture in pictures])
        await phone.until("assistant.speech.final", text="Three cats.")
        assert not phone.errors()
    assert [data for _, data in images_of(claude.requests[0])] == pictures[:3]
    assert "[an image that was refused: There are more than 3 images.]" in json.dumps(claude.requests[0])


@pytest.mark.parametrize(("image", "why"), BAD.values(), ids=BAD)
async def test_words_count_beside_an_image_that_is_refused(
    claude: AnthropicService, image: dict[str, str], why: str
) -> None:
    claude.replies.append(Reply(text="A cat, and something else."))
    async with talking(claude, "images", "diagnostics") as phone:
        phone.say("what are these?", images=[image, on_the_wire(PICTURE)])
        await phone.until("assistant.speech.final")
        (told,) = phone.events("diagnostic")
        assert not phone.errors()
    assert told["payload"]["code"] == "refused_image" and why in told["payload"]["message"]
    assert images_of(claude.requests[0]) == [("image/png", PICTURE)]
    read = json.dumps(claude.requests[0])
    assert "what are these?" in read and f"[an image that was refused: {told['payload']['message']}]" in read


@pytest.mark.parametrize("card", [True, False], ids=["a card", "a spoken question"])
@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_an_answer_counts_beside_an_image_that_is_refused(
    claude: AnthropicService, answer: str, card: bool
) -> None:
    claude.replies += [Reply(calls=(call("move_file"),)), Reply(text="I see.")]
    capabilities = ("images", "approval") if card else ("images",)
    async with talking(claude, *capabilities, device=DEVICE, heard_window=0.0) as phone:
        phone.say("move it")
        if card:
            asked = await phone.until("approval.request")
            phone.send("approval.shown", {"approvalId": asked["payload"]["approvalId"]})
        else:
            await phone.until("state idle", since=await phone.until("tts.speak"))
        phone.say(answer, images=[on_the_wire(b"<svg/>")])
        await phone.until("assistant.speech.final", text="I see.")
        assert (
            phone.runs == ([("move_file", {"path": "a"})] if answer == "yes" else []) and not phone.errors()
        )
    (read,) = results_of(claude.requests[-1])
    assert "was refused: An image is called image/png" in str(read["metadata"]["notes"])
    assert images_of(claude.requests[-1]) == []


async def test_a_fourth_image_is_refused_and_three_are_shown(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("snap"),)), Reply(text="Three.")]
    pictures = [png(seed=number) for number in range(4)]
    device = snaps(*map(on_the_wire, pictures))
    async with talking(claude, "images", tools=[SNAP], device=device) as phone:
        await phone.ask("what do you see?")
    assert [data for _, data in images_of(claude.requests[-1])] == pictures[:3]
    assert "more than 3 images" in json.dumps(claude.requests[-1])


async def test_without_the_capability_images_are_ignored_with_a_hint(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("snap"),)), Reply(text="Nothing.")]
    device = snaps(on_the_wire(PICTURE))
    async with talking(claude, "diagnostics", tools=[SNAP], device=device) as phone:
        await phone.ask("what do you see?")
        (told,) = phone.events("diagnostic")
    assert told["payload"]["code"] == "missing_capability" and "'images'" in told["payload"]["message"]
    (read,) = results_of(claude.requests[-1])
    assert read["data"] == "a photo" and images_of(claude.requests[-1]) == []


@pytest.mark.parametrize("capabilities", [("images",), ()], ids=["with images", "without"])
async def test_a_long_frame_is_read_only_from_a_client_that_sends_images(
    claude: AnthropicService, capabilities: tuple[str, ...]
) -> None:
    claude.replies.append(Reply(text="Three."))
    pictures = [png(noise=500_000, seed=number) for number in range(3)]
    async with talking(claude, *capabilities) as phone:
        phone.say("what are these?", images=[on_the_wire(picture) for picture in pictures])
        if capabilities:
            await phone.until("assistant.speech.final")
            assert [data for _, data in images_of(claude.requests[0])] == pictures
        else:
            await phone.closed.wait()
            assert phone.close_code == 1009 and not claude.requests


async def test_long_words_are_refused_beside_images(claude: AnthropicService) -> None:
    async with talking(claude, "images") as phone:
        since = len(phone.log)
        phone.say("a" * 70_000, images=[on_the_wire(PICTURE)])
        await phone.until("state idle", since=since)
        assert "event_too_large" in phone.errors()[0]["message"]


async def test_a_late_result_shows_its_image_in_the_next_turn(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("snap"),)), Reply(text="It takes long."), Reply(text="A tree.")]
    async with talking(claude, "images", tools=[SNAP], tool_timeout=0.2) as phone:
        await phone.ask("what do you see?")
        (asked,) = phone.events("snap")
        phone.result(asked["payload"]["callId"], Shown("a photo", [on_the_wire(PICTURE)]))
        await phone.until("assistant.speech.final", text="A tree.")
    assert images_of(claude.requests[-1]) == [("image/png", PICTURE)]


async def test_images_of_cancelled_halves_leave_room_for_later_ones(claude: AnthropicService) -> None:
    claude.replies.append(Reply(text="A cat."))
    three = [on_the_wire(png(seed=number)) for number in range(3)]
    async with talking(claude, "images", "hints", "cancel", "turns", hold_unfinished=60.0) as phone:
        for _ in range(4):
            since = len(phone.log)
            phone.say("What is this and", images=three)
            await phone.until("turn.hint", since=since)
            phone.send("response.cancel", {})
            await phone.until("turn.ended", since=since)
        phone.say("What is that?", images=[on_the_wire(PICTURE)])
        await phone.until("assistant.speech.final")
    assert images_of(claude.requests[0])[-1] == ("image/png", PICTURE)


async def test_a_tool_shows_its_image_while_words_with_images_wait(claude: AnthropicService) -> None:
    claude.replies += [Reply(calls=(call("snap"),)), Reply(text="I see a tree.")]
    three = [on_the_wire(png(seed=number)) for number in range(3)]
    async with serving(provider_for(claude), mode="queue") as served, served.phone() as phone:
        await begin(phone, "images", "resume", tools=[SNAP])
        phone.say("what do you see?")
        asked = await phone.until("snap")
        for number in range(3):
            event_id = phone.say(f"what is number {number}?", images=three)
        await phone.until(lambda event: event_id in event["payload"].get("eventIds", ()))
        phone.result(asked["payload"]["callId"], Shown("a photo", [on_the_wire(PICTURE)]))
        await phone.until("assistant.speech.final", text="I see a tree.")
    assert images_of(claude.requests[1]) == [("image/png", PICTURE)]


async def test_a_frame_with_images_counts_by_its_size_even_if_it_was_asked_for() -> None:
    for size, tokens in ((60_000, 0), (3_000_000, 147)):
        rate = EventRate(Limits(), lambda _: None)
        rate.settle(InboundResult.EXPECTED)
        assert await rate.admit(size)
        assert round(rate.deficit(asyncio.get_running_loop().time())) == tokens
