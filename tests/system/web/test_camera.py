"""The page's camera: "What do you see?", a card, and a picture that the demo model does not see."""

from __future__ import annotations

import pytest

from tests.system.web.browser import PageUser

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_camera_shows_its_picture_after_a_yes(user: PageUser) -> None:
    await user.say("What do you see?")
    card = user.page.locator(".card")
    await card.wait_for()
    assert "camera" in (await card.inner_text())
    await card.get_by_role("button", name="Allow").first.click()
    await user.answer("I got a picture (")
    said = await user.page.locator(".message.assistant").last.inner_text()
    assert "cannot see it" in said
    picture = user.page.locator(".call").get_by_role("img")
    assert (await picture.bounding_box())["width"] == 160
    colours = "(canvas) => new Set(canvas.getContext('2d').getImageData(0, 0, 640, 480).data).size"
    assert await picture.evaluate(colours) > 2
    assert await user.axe() == []
    (shown,) = [result for result in await user.outgoing("tool.result") if "images" in result]
    assert shown["result"] == "A picture from the camera."
    assert [image.partition(",")[0] for image in shown["images"]] == ["[image/jpeg"]


async def test_a_large_picture_is_scaled_and_a_small_one_stays(user: PageUser) -> None:
    sizes = await user.page.evaluate(
        """async () => {
          const { picture } = await import("./conductor.js");
          const sizes = [];
          for (const [width, height] of [[4000, 3000], [100, 50]]) {
            const canvas = new OffscreenCanvas(width, height);
            canvas.getContext("2d").fillRect(0, 0, 1, 1);
            const { mimeType, data } = await picture(canvas);
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            const bitmap = await createImageBitmap(new Blob([bytes], { type: mimeType }));
            sizes.push([mimeType, bitmap.width, bitmap.height]);
          }
          return sizes;
        }"""
    )
    assert sizes == [["image/jpeg", 1568, 1176], ["image/jpeg", 100, 50]]
