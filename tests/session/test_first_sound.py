"""The time to the first sound of long replies in eight languages, with stops and without any."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from conductor.models.base import TextDelta
from tests.models import Script
from tests.session.helpers import SPOKEN, App, make_services, open_session, run

CHARS_PER_S = 60
# The longest segment, in characters of a wide script and of others, and the words that complete it.
MOST, MOST_WIDE, LOOK_AHEAD = 200, 66, 12

TEXTS: dict[str, str] = {
    "en": (
        "The lamp in the hall is on now. It uses nine watts, which is little for its light, and it will go "
        "off by itself at ten in the evening. If you would "
        "like to read in there, I can make it brighter, too."
    ),
    "de": (
        "Die Lampe im Flur ist jetzt an. Sie braucht neun Watt, das ist wenig für so viel Licht, und sie "
        "geht abends um zehn wieder aus. Wenn du dort lesen möchtest, stelle ich sie gern etwas heller ein."
    ),
    "fr": (
        "La lampe du couloir est maintenant allumée. Elle consomme neuf watts, ce qui est peu pour sa "
        "lumière, et elle s'éteindra à dix heures du soir. Si "
        "tu veux lire là-bas, je peux la rendre plus vive."
    ),
    "hi": (
        "गलियारे की बत्ती अब जल रही है। यह नौ वाट लेती है, जो इतनी रोशनी के लिए कम है, और रात दस बजे "
        "बुझ जाएगी। अगर आप वहाँ पढ़ना चाहते हैं, तो मैं इसे और तेज़ कर सकता हूँ। बस मुझे बता दीजिए।"
    ),
    "ar": (
        "المصباح في الممر مضاء الآن. يستهلك تسعة واط، وهذا قليل مقابل ضوئه، وسوف ينطفئ وحده مساء. "
        "إذا أردت أن تقرأ هناك، يمكنني أن أجعله أكثر سطوعا. قل لي فقط متى تريد ذلك، وسأفعله."
    ),
    "zh": (
        "走廊里的灯现在亮着。它只用九瓦，对这样的亮度来说很少，晚上十点会自己熄灭。"
        "如果你想在那里看书，我可以把它调亮一些。告诉我什么时候需要，我马上就做。"
    ),
    "ja": (
        "廊下の明かりは今ついています。消費電力は九ワットで、夜の十時に自動で消えます。"
        "そこで本を読みたいなら、もっと明るくできます。いつでも言ってください。"
    ),
    "th": (
        "ตอนนี้ไฟในโถงทางเดินเปิดอยู่ มันใช้ไฟเก้าวัตต์ซึ่งน้อยมากสำหรับแสงขนาดนี้ และจะดับเองตอนสี่ทุ่ม "
        "ถ้าคุณอยากอ่านหนังสือตรงนั้น ฉันทำให้สว่างขึ้นได้ แค่บอกฉันว่าเมื่อไร ฉันจะทำให้ทันที"
    ),
}
POEM = (
    "Between the rows of sleeping trees\nThe river slows and turns to see\nA lantern carried on the breeze\n"
    "That nobody has set so free\n"
)
KINDS: dict[str, Callable[[str], str]] = {
    "with stops": lambda text: text,
    "commas only": lambda text: re.sub(r"[.।。]", lambda stop: "，" if stop[0] == "。" else ",", text),
    "no stops": lambda text: re.sub(r"[.,।،。，、]", "", text),
    "no stops and no blanks": lambda text: re.sub(r"[.,।،。，、 ]", "", text),
}


def first_sound(text: str) -> tuple[float, float]:
    """Give the seconds to the first speech and to the end of the text, at `CHARS_PER_S`."""

    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        spoken: asyncio.Future[float] = loop.create_future()

        def answer(name: str, call_id: str) -> str:
            if name == "tts.speak" and not spoken.done():
                spoken.set_result(loop.time())
            return SPOKEN

        script: Script = [step for char in text for step in (TextDelta(char), 1 / CHARS_PER_S)]
        session = await open_session(make_services([script]))
        app = App(answer)
        app.capabilities = ["segments"]
        await app.connect(session)
        start = loop.time()
        app.say("Well?")
        return await spoken - start, len(text) / CHARS_PER_S

    return run(scenario())


WIDE, WITHOUT_BLANKS = ("zh", "ja"), ("zh", "ja", "th")
CASES = [
    (language, kind)
    for language in TEXTS
    for kind in KINDS
    if kind != "no stops and no blanks" or language in WITHOUT_BLANKS
]


@pytest.mark.parametrize(("language", "kind"), CASES)
def test_the_first_sound_does_not_wait_for_the_end_of_a_text(language: str, kind: str) -> None:
    text = KINDS[kind](TEXTS[language]) * 2
    first_s, all_s = first_sound(text)
    print(f"{language} {kind}: {first_s:.1f} s of {all_s:.1f} s")  # noqa: T201 -- the figures
    most = MOST_WIDE if language in WIDE else MOST
    assert first_s <= (most + LOOK_AHEAD) / CHARS_PER_S


def test_a_poem_is_spoken_line_by_line() -> None:
    first_s, all_s = first_sound(POEM * 4)
    print(f"a poem: {first_s:.1f} s of {all_s:.1f} s")  # noqa: T201 -- the figures
    assert first_s <= (len(POEM.splitlines()[0]) + LOOK_AHEAD) / CHARS_PER_S
