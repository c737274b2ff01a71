"""Words that only show that the person listens, and words that do not, in each language."""

from __future__ import annotations

import pytest

from conductor.plugins.judges import LANGUAGES, PageJudge

BACKCHANNELS = {
    "en": """mhm | Mm-hmm. | Uh-huh | okay, right | Yeah yeah yeah | I see. | Got it | Oh wow | hmmmm
        Makes sense | Sounds good | go on | That's right | really | okaaay | Oh, okay, I see
        right, right | yes | cool, that's great | Oh nice | It's fine. | that's so true | Um
        of course | all right | exactly | good point | keep going | ohhh | mmhmmm | aha, aha | hahaha | Huh.
        That's so funny | how sad | well, that makes sense | What a shame. | Oh my goodness
        Oh, really? | really? | Did she? | no way | ha ha | a ha | that's a lot | oh, is that so?
        okay man | I'm with you | that explains it | oh bless | now I see
        oh no, poor thing | absolutely fascinating""",
    "de": """ja | Ja, ja. | mhm | genau | Ach so! | okay, alles klar | stimmt | das stimmt | verstehe
        ja klar | na gut | mach weiter | sehr gut | das klingt gut | hm, okay | ähm | in Ordnung
        echt | natürlich | ohh | hehe | das ist ja lustig | wie schade | ach du meine Güte | uff
        ah so | Ach, wirklich? | echt? | Hat er das? | Nee, oder? | ach guck | na endlich | gut, gell
        ah, so ist das | das wusste ich gar nicht | oh nein, wie traurig | das hört sich gut an""",
    "es": """sí | Sí, sí | ajá | vale | claro | Claro que sí. | ya veo | entiendo | de acuerdo | muy bien
        qué interesante | así es | eso es | mhm, vale | por supuesto | sigue | exacto
        tiene sentido | ohh | jajaja | qué fuerte | pues qué pena | está genial | madre mía
        ah mirá vos | ¿En serio? | ¿Ah, sí? | qué bueno, tío | ah, con razón | no me digas
        ya te digo | ay no, qué horror""",
    "fr": """oui | oui, oui | d'accord | Ah bon. | je vois | c'est vrai | bien sûr | ok | tout à fait
        ça marche | très bien | en effet | c'est ça | voilà | mhm, d'accord | continue | exactement
        ouais | ohh | haha | c'est vraiment dommage | très drôle | mon Dieu | sans blague
        Ah bon ? | Ah oui ? | vraiment ? | ah, c'est pour ça | c'est fou, ça | Oh là là. | tiens donc
        ah la vache | oh non, le pauvre""",
}
OTHERS = {
    "en": """no | stop | wait | okay stop | yeah but | uh-uh | nuh-uh | mm-mm | thanks | hey | well
        what | right? | okay? | not really? | yes please | who | two | okay so what about tea | I know
        that's enough | okay thanks | not really | hold on | yes, no | right now | go away
        I see a problem | okay, and | good morning | sure, but later
        louder | how | that is | that's wrong | that's too loud | me | home | shh | huh, what | just no
        oh wait | ah no | oh, and call Bob | oh Bob | oh, the milk | that's good enough | okay man stop
        is it open? | did you call her? | so that | that's not right | oh turn it off | oh so
        they're sick""",
    "de": """nein | stopp | warte | ja, aber | doch | danke | was | ja? | na ja | genug | das reicht
        nee | mm-mm | ja, und | nicht gut | okay, dann um acht | mach lauter
        lauter | wie | so | das ist | das ist zu laut | pst | um | ihm | oh nein
        ach nein | oh warte | schon gut | gut jetzt | ist gut | okay, halt | ja halt | oh, die Milch
        ach, und ruf Peter an | hat der offen? | das weiß ich | weiter | ach das
        oh schau mal | sag an""",
    "es": """no | para | espera | sí, pero | gracias | basta | qué | ya basta | ¿sí? | si llueve | mm-mm
        vale, y | no entiendo | más alto | muy | qué hora | eso está mal | shh | me | está
        ah no | ya vale | ya está | ah, espera | ah, y llama a Ana | ay, la leche | más fuerte
        no está bien | ¿está abierto? | ya lo sé | ay no | qué restaurante | anda ya | qué va | mira""",
    "fr": """non | stop | attends | oui, mais | merci | quoi | ça suffit | si | pas vrai | mm-mm
        d'accord, et | oui ? | je ne vois pas | plus fort | c'est | c'est faux | chut | ma | très
        ah non | oh, attends | ah, et appelle Bob | trop fort | c'est pas bon | oh, le lait | bon alors
        c'est loin ? | je sais | ça va bien | tant pis | par exemple | elle est malade""",
}


def words_of(text: str) -> list[str]:
    return [words.strip() for line in text.splitlines() for words in line.split("|")]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_backchannel_is_known_by_its_language(language: str) -> None:
    judge = PageJudge(language)
    assert [words for words in words_of(BACKCHANNELS[language]) if not judge.is_backchannel(words)] == []
    assert [words for words in words_of(OTHERS[language]) if judge.is_backchannel(words)] == []


def test_a_word_of_another_language_is_no_backchannel() -> None:
    assert PageJudge("de").is_backchannel("genau") and not PageJudge("en").is_backchannel("genau")
