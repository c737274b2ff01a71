"""Signs that a voice would read out, or that a mark takes away: a text, and what is heard."""

from __future__ import annotations

from functools import partial

import pytest

from conductor.speech import for_the_ear
from tests.cpu import least_cpu_s

ARROWS = [
    ("Berlin → Munich", "Berlin, Munich"),
    ("Settings→Privacy → Location.", "Settings, Privacy, Location."),
    ("A ⇒ B, and C ⟶ D", "A, B, and C, D"),
    ("first ➡️ second ⬇ third", "first, second, third"),
    ("a -> b => c", "a, b, c"),
    ("p->next stays, as x=>y does", "p->next stays, as x=>y does"),
    ("→ milk\n→ eggs", "milk. eggs"),
    ("Next: → milk", "Next: milk"),
    ("Done → .", "Done."),
    ("left ←→ right", "left, right"),
    ("It goes on →", "It goes on"),
    ("Press &rarr; twice", "Press, twice"),
    ("a --> b <-- c", "a, b, c"),
    ("Save it (\u2192 Settings \u2192 Wi-Fi)", "Save it (Settings, Wi-Fi)"),
]
CITATIONS = [
    ("It rains【4:0†source】.", "It rains."),
    ("It rains 【12†report.pdf】【13†news】, they say.", "It rains, they say."),
    ("It rains 〖3†source〗.", "It rains."),
    ("It rains [4:0†source].", "It rains."),
    ("It rains \ue200cite\ue202turn0search0\ue201.", "It rains."),
    ("It rains \ue200cite\ue202turn0search0\ue202turn1news12\ue201, a lot.", "It rains, a lot."),
    ("It rains \ue200navlist\ue202More\ue202turn0news1\ue201", "It rains"),
    ("It rains citeturn0search0.", "It rains."),
    ("It rains citeturn0search0turn0news1", "It rains"),
    ("It rains [oai_citation:0‡weather.example](https://weather.example/x).", "It rains."),
    ("[cite_start]It rains[cite: 3, 12].", "It rains."),
    ("They cite turn 3, and 【quoted】 words.", "They cite turn 3, and 【quoted】 words."),
]
SSML = [
    ("<speak>Hello</speak>", "Hello"),
    ('<?xml version="1.0"?><speak>Hello<break time="500ms"/>you</speak>', "Hello you"),
    ('<prosody rate="slow">Slowly</prosody>, please', "Slowly, please"),
    ('<emphasis level="strong">Now</emphasis>!', "Now!"),
    ('Call <say-as interpret-as="telephone">5550 123</say-as>.', "Call 5550 123."),
    ('<phoneme alphabet="ipa" ph="pɪˈkɑːn">pecan</phoneme> pie', "pecan pie"),
    ('<sub alias="World Wide Web">WWW</sub> and <lang xml:lang="de">Brot</lang>', "WWW and Brot"),
    ('<amazon:effect name="whispered">psst</amazon:effect>', "psst"),
    ('<mstts:express-as style="sad">oh</mstts:express-as> dear', "oh dear"),
    ("Wait.<break/> Go.", "Wait. Go."),
    (
        "Map<string> and a<b:c stay, <mailto:a@example.com> too",
        "Map<string> and a<b:c stay, a@example.com too",
    ),
]
FORMULAS = [
    (r"The area is $\pi r^2$.", "The area is pi r²."),
    ("$$E = mc^2$$", "E = mc²"),
    (r"\(x^2 + y_1\) is it", "x² + y 1 is it"),
    (r"\[ \frac{a}{b} \times \sqrt{2} \]", "a/b × √2"),
    (r"It is \frac{1}{2}, or \text{about} that.", "It is 1/2, or about that."),
    (r"$x_{12} \leq \text{max}$", "x 12 ≤ max"),
    (r"$10^{-3}$ m and $a^{bc}$", "10⁻³ m and a^bc"),
    (r"$\frac{\sqrt{b}}{2a}$", "√b/2a"),
    (r"$f: \alpha \to \infty$", "f: alpha, ∞"),
    (r"$\left( 3 \pm 4 \right)$", "( 3 ± 4 )"),
    (r"$50\%$ of $20\,\text{kg}$", "50% of 20 kg"),
    ("It costs $5, or $10 for two.", "It costs $5, or $10 for two."),
    ("$HOME and US$5/US$7 stay.", "$HOME and US$5/US$7 stay."),
    (r"It is \$5.", "It is $5."),
    (r"It is $21^\circ\text{C}$, or \(70^{\circ}\)F.", "It is 21°C, or 70°F."),
    ("Solve $x$ and $y$, for $5 or 6$.", "Solve x and y, for $5 or 6$."),
    (r"\begin{align*} a &= b \\ c &= d \end{align*}", "a = b , c = d"),
    (r"$$\begin{array}{cc} 1 & 2 \end{array}$$", "1 2"),
]
BULLETS = [
    ("•\u00a0eggs\n•\u00a0milk", "eggs. milk"),
    ("‣\u00a0eggs\n‣\u00a0milk", "eggs. milk"),
    ("◦\u00a0eggs\n◦\u00a0milk", "eggs. milk"),
    ("·\u00a0eggs\n·\u00a0milk", "eggs. milk"),
    ("•eggs\n•milk", "eggs. milk"),
    ("▪ eggs\n● milk\n■ bread", "eggs. milk. bread"),
    ("– eggs\n– milk", "eggs. milk"),
    ("-\u202feggs\n1.\u00a0milk", "eggs. 1. milk"),
    ("red • green · blue", "red, green, blue"),
    ("a·b is a product, and a dash – or — two – stays", "a·b is a product, and a dash – or — two – stays"),
]
ADDRESSES = [
    ("Open /api/items?limit=5&offset=2.", "Open /api/items."),
    ("Open example.com/a/b?x=1&y=2, then go.", "Open example.com, then go."),
    ("(see www.example.com/a?b=c)", "(see example.com)"),
    ("GET items/7?full=true", "GET items/7"),
    ("Is it 5/2? x=3, and either/or? Yes.", "Is it 5/2? x=3, and either/or? Yes."),
]
NOTHING = [
    ("(empty content)", ""),
    ("[Empty content]", ""),
    ("*(empty content)*", ""),
    ("(Empty content.)", ""),
    ("(no content) It rains.", "It rains."),
    ("The box has (no contents).", "The box has (no contents)."),
]
PATHS = [
    (r"It is in C:\_work.", r"It is in C:\_work."),
    (r"C:\Users\_me\*.txt and D:\#x", r"C:\Users\_me\*.txt and D:\#x"),
    (r"All of C:\*.txt", r"All of C:\*.txt"),
    (r"\\server\_share\x", r"\\server\_share\x"),
    (r"snake\_case and \*stars\*", "snake_case and *stars*"),
]
HEARD = [*ARROWS, *CITATIONS, *SSML, *FORMULAS, *BULLETS, *ADDRESSES, *NOTHING, *PATHS]


@pytest.mark.parametrize(("text", "heard"), HEARD)
def test_a_sign_is_not_read_out_and_no_word_is_lost(text: str, heard: str) -> None:
    assert for_the_ear(text) == heard


def test_what_is_heard_is_heard_so_again() -> None:
    assert len(HEARD) >= 60
    for _, heard in HEARD:
        if "\\" not in heard and "*" not in heard:
            assert for_the_ear(heard) == heard


HOSTILE = [
    *(
        "→",
        " → ",
        "-> ",
        "【",
        "【1†",
        "[1†a",
        "\ue200",
        "citeturn0search0",
        "[oai_citation:1‡",
        "[cite:1",
        "<a:b ",
        "<speak ",
    ),
    *(
        "$",
        "$$",
        "$a^",
        "\\(",
        "\\[",
        "\\frac{",
        "\\frac{a}{b}",
        "\\text{",
        "{",
        "\\begin{a}",
        "\\begin{a}x\\e",
        "\\a{b}",
        "^{",
        "_{",
        "$\\frac{$",
    ),
    *("• ", "·", "/a?b=", "a.", "a.b/", "-.", "(empty ", "C:\\", "\\\\a", ":\\a"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_signs_take_a_bounded_time(piece: str) -> None:
    text = piece * (65_536 // len(piece))
    for hostile in (text, f"x{text}x", f"${text}$", f"\\({text}\\)"):
        assert least_cpu_s(partial(for_the_ear, hostile), 0.25) < 0.25  # 0.03; if quadratic, seconds
