"""The credits of a film, which recognisers hear in silence."""

from __future__ import annotations

import pytest

from conductor.plugins.judges import LANGUAGES, PageJudge

CREDITS = {
    "en": """Subtitles by the Amara.org community | Subs by www.zeoranger.co.uk | Subtitles by Jane Doe
        Transcription by CastingWords | Thanks for watching! | Thank you so much for watching.
        Thanks for watching, see you next time. | Don't forget to like and subscribe to my channel""",
    "de": """Untertitel im Auftrag des ZDF für funk, 2017 | Untertitelung des ZDF, 2020 | Copyright WDR 2021
        Untertitel der Amara.org-Community | Vielen Dank fürs Zuschauen! | Untertitel von Stephanie Geiges
        SWR 2020 | - ARD Text im Auftrag von Funk 2019""",
    "es": """Subtítulos realizados por la comunidad de Amara.org | Subtítulos por la comunidad de Amara.org
        ¡Gracias por ver el vídeo! | Suscríbete al canal!""",
    "fr": """Sous-titres réalisés par la communauté d'Amara.org | Sous-titrage Société Radio-Canada
        Sous-titrage ST' 501 | Merci d'avoir regardé cette vidéo ! | Abonnez-vous à la chaîne""",
}
WORDS = {
    "en": """Subtitles for the film of 2019 | Subtitles on | Is that under copyright since 1990
        Copyright notices from before 2019 | Copyright law 1998 | Thanks for watching the dog
        thank you for watching over her | subscribe to the newsletter | transcribe this | subtract two
        I like www.example.com""",
    "de": """Untertitel an | Copyright der Bilder von 2019 | Danke fürs Zuhören, mach weiter | Das war 2020
        die ARD bitte | Untertitel von dem Film?""",
    "es": """Subtítulos en inglés | gracias por verlo conmigo | suscríbeme al periódico
        quita los subtítulos""",
    "fr": """Sous-titres en anglais | merci d'avoir regardé pour moi | abonne-moi au journal""",
}


def lines_of(text: str) -> list[str]:
    return [words.strip() for line in text.splitlines() for words in line.split("|")]


@pytest.mark.parametrize("language", LANGUAGES)
def test_credits_are_no_words_of_a_person(language: str) -> None:
    judge = PageJudge(language)
    assert [words for words in lines_of(CREDITS[language]) if not judge.is_credit(words)] == []
    assert [words for words in lines_of(WORDS[language]) if judge.is_credit(words)] == []
