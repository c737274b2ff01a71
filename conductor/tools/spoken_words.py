"""The English words that answers to a spoken question are made of, and how an utterance becomes words.

Word lists are the closed grammar's vocabulary (tools, "Spoken approvals"): what is not in them is foreign,
and a foreign word is never part of an approval. Phrases are written as a transcriber would write them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

Words: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Literal["yes", "weak", "tail", "filler", "polite", "once", "session", "always"]

MAX_CHARS = 2000

_APOSTROPHES = dict.fromkeys(map(ord, "\u2018\u2019\u201b\u02bc\u02b9\u00b4\u2032`"), "'")
# Punctuation that only parts words. A question mark is not in it: a question is no answer.
_SEPARATORS = " .,!;:\"'_\u201c\u201d\u201e\u00ab\u00bb\u2010\u2011\u2012\u2013\u2014\u2015\u2212-"
_TOKEN = re.compile(rf"\d+(?:[.:,]\d+)+|[^\W_]+(?:'[^\W_]+)*|[^\s{re.escape(_SEPARATORS)}]")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")

_UNITS = {w: n for n, w in enumerate("zero one two three four five six seven eight nine".split())}
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_UNDER_TWENTY = {**_UNITS, **{word: number for number, word in enumerate(_TEENS, start=10)}}
_TENS_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_TENS = {word: number * 10 for number, word in enumerate(_TENS_WORDS, start=2)}
NUMBER_WORDS = {number: word for word, number in _UNDER_TWENTY.items()}


def words_of(text: str) -> Words:
    """Cut a text into lower-case words; numbers are digits ("three" is "3"), a sign is a word of its own.

    Punctuation that parts words is left out, save the question mark. Characters that nobody sees are dropped.
    """
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold()
    if len(text) > MAX_CHARS:  # one character may become eighteen; what is cut off leaves a foreign word
        text = text[:MAX_CHARS] + " \ufffd"
    if not text.isascii():
        text = "".join(c for c in text.translate(_APOSTROPHES) if unicodedata.category(c) != "Cf")
    found = _TOKEN.findall(text.replace("%", " percent "))
    return tuple(_numbered([w.replace(",", "") if _THOUSANDS.fullmatch(w) else w for w in found]))


def _numbered(words: Sequence[str]) -> Iterator[str]:
    """Replace number words by digits: "twenty five" is 25, "one two" is 1 2."""
    at = 0
    while at < len(words):
        number, end = _number(words, at)
        yield words[at] if number is None else str(number)
        at = end


def _number(words: Sequence[str], at: int) -> tuple[int | None, int]:
    """Read a number below a million from ``at``; returns it, or None, and where it ends."""
    number, end = _hundreds(words, at)
    if number and end < len(words) and words[end] == "thousand":
        rest, after = _hundreds(words, end + 1)
        return (number * 1000 + rest, after) if rest else (number * 1000, end + 1)
    return (number, end) if number is not None else (None, at + 1)


def _hundreds(words: Sequence[str], at: int) -> tuple[int | None, int]:
    number, end = _small(words, at)
    if number and number < 10 and end < len(words) and words[end] == "hundred":
        rest, after = _small(words, end + 1)
        return (number * 100 + rest, after) if rest else (number * 100, end + 1)
    return number, end


def _small(words: Sequence[str], at: int) -> tuple[int | None, int]:
    word = words[at] if at < len(words) else ""
    if word in _TENS:
        unit = _UNITS.get(words[at + 1], 0) if at + 1 < len(words) else 0
        return _TENS[word] + unit, at + (2 if unit else 1)
    return _UNDER_TWENTY.get(word), at + 1


def phrases(text: str) -> frozenset[Words]:
    """Read a list of phrases, a comma between them."""
    return frozenset(words_of(phrase) for phrase in text.split(","))


def plural(word: str) -> str:
    """Guess the plural of a noun, loosely."""
    if word.endswith("y") and word[-2:-1] not in set("aeiou"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def singular(word: str) -> str:
    """Guess the singular of a noun, loosely; a word that is no plural is returned as it is."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


# -- approval

YES = phrases(
    "yes, go ahead, go right ahead, go a head, goahead, do it, do that, do this, do so, please do, "
    "approve, approved, i approve, it's approved, that's approved, confirm, confirmed, i confirm, "
    "affirmative, proceed, go for it, by all means, allow, i allow, permitted, authorize, authorized, "
    "authorise, authorised, i authorize, i authorise, granted, permission granted, you have my "
    "permission, you have my approval, i consent, you've got my permission, you've got my approval, i "
    "give you permission, i give my permission, i give you my permission, accept, accepted, run it, "
    "execute it, let's do it, lets do it, let's do that, let's go ahead, lets go ahead, just do it, "
    "just go ahead, the answer is yes, my answer is yes, that's a yes, it's a yes, make it so"
)
"""An approval holds at least one of these."""

DONE = phrases(
    "approved, confirmed, permitted, authorized, authorised, granted, accepted, permission granted, i "
    "approve, i confirm, i allow, i consent, i authorize, i authorise"
)
"""Approvals that are reports or conditions after other words: "Anna approved", "the agent confirmed"."""

TAILS = phrases("with it, with that, with this, to that")
"""Weak, and only after an approval: "with this approved" is a condition."""

VERBS = phrases("approve, confirm, accept, allow, authorize, authorise")
"""Approvals that take an object: "allow it" is one, "allow Anna" another matter."""

WEAK = phrases(
    "okay, ok, o k, okey, yeah, yea, ya, yah, yep, yup, aye, sure, sure thing, alright, all right, "
    "fine, of course, absolutely, definitely, certainly, totally, exactly, correct, that's correct, "
    "that's right, that's fine, that's okay, that's ok, that's good, that's great, that is fine, that "
    "is correct, that is right, that is okay, it's fine, it's okay, it's ok, thats fine, thats right, "
    "thats ok, thats okay, sounds good, looks good, sounds great, sounds fine, good, good idea, "
    "great, perfect, excellent, cool, all good, fine by me, fine with me, okay with me, ok with me, "
    "i'm sure, i am sure, i'm fine with that, i'm okay with that, i agree, agreed, indeed, very well, "
    "i'm certain, i am certain, uh huh, mm hmm, mhm, go, go on, let's go, let's, carry on, continue, "
    "you can, you may, i do, i want you to, i'd like you to, i would like you to, i want that, i'd "
    "like that"
)
"""May stand in an approval, but is none: people say these to show that they listen. "Absolutely" and
"you may" are here because a pause may have cut off their "not"."""

FILLERS = phrases("um, umm, uh, uhm, er, erm, ah, oh, hm, hmm, mm, mmm, well")
"""None may end an approval: whoever says "yes, um" has not finished."""

POLITE = phrases(
    "please, thanks, thank you, thank you very much, thank you so much, many thanks, thanks a lot, "
    "cheers, kindly, for me, sir, ma'am, now, right now, right away, straight away, immediately"
)
ONCE = phrases(
    "once, just once, only once, this once, just this once, only this once, this time, just this "
    "time, one time, only this time, just one time, just the once, for this once, once only, one time "
    "only, this time only, just this one time, only this one time, this one time"
)
SESSION = phrases(
    "for this session, for this session only, just for this session, only for this session, this "
    "session, for the session, in this session, during this session, for the whole session, for the "
    "rest of the session, for the rest of this session, for this conversation, for the whole "
    "conversation, for the rest of this conversation, for the rest of the conversation, for our "
    "session"
)
ALWAYS = phrases("always, every time, each time, from now on, from here on, all the time")
"""Not "permanently" or "in future": they say how, or when, the action is to be done."""

ENDINGS = phrases("once, every time, each time, all the time")
"""With other words after them they are conditions: "once approved", "every time I approve"."""

PHRASES: dict[Words, Kind] = {
    **dict.fromkeys((*YES, *((*p, "then") for p in YES)), "yes"),
    **dict.fromkeys((*WEAK, *((*p, "then") for p in (*WEAK, ("right",)))), "weak"),
    **dict.fromkeys(TAILS, "tail"),
    **dict.fromkeys(FILLERS, "filler"),
    **dict.fromkeys(POLITE, "polite"),
    **dict.fromkeys(ONCE, "once"),
    **dict.fromkeys(SESSION, "session"),
    **dict.fromkeys(ALWAYS, "always"),
}
LONGEST_PHRASE = max(map(len, PHRASES))
OPENERS = frozenset({"right", "so"})
"""Weak as first words; later on they are irony ("yeah right") or a beginning ("yes, so")."""

DETERMINERS = frozenset("the a an this that these those my".split())
PRONOUNS = frozenset("it this that".split())
PLURAL_PRONOUNS = frozenset("them these those".split())
PREPOSITIONS = frozenset("to into from with in on at for of called named titled".split())
GENERIC_VERBS = frozenset("run execute".split())
GENERIC_NOUNS = frozenset("action request tool call".split())
JOINERS = frozenset("dot at slash backslash underscore dash hyphen / \\ @ ~ #".split())
SYNONYMS = ("delete remove erase", "create make", "start spawn launch", "save write", "mail email")

TO_ROLES = frozenset(
    "to into recipient recipients destination dest target address email contact person user phone "
    "channel new".split()
)
ROLES = {
    "to": TO_ROLES,
    "into": TO_ROLES,
    "from": frozenset("from source src origin sender old".split()),
    "with": frozenset("with new replacement text message body content subject title name by".split()),
    "for": frozenset("for user person query new duration time at when".split()),
    **dict.fromkeys(("called", "named", "titled"), frozenset("name title subject label".split())),
}
"""Preposition -> words of the names of arguments whose values may follow it where there are several."""
STRICT = frozenset("from called named titled".split())
"""These need such a name even where there is one argument only."""
PEOPLE = frozenset("to recipient recipients contact person user name cc bcc attendee attendees".split())

# -- what no name of a tool and no argument may bring into the vocabulary

NEGATIONS = frozenset(
    "no not never none nothing neither nor nope nah cannot without don't dont doesn't doesnt didn't "
    "didnt can't cant won't wont wouldn't wouldnt shouldn't shouldnt couldn't couldnt isn't isnt "
    "aren't arent wasn't wasnt weren't haven't hasn't hadn't mustn't mightn't needn't ain't hardly "
    "barely negative nobody nowhere".split()
)
STOP_VERBS = frozenset(
    "stop cancel abort halt skip drop keep leave forget deny reject refuse decline".split()
)
CONDITIONS = frozenset(
    "if unless until till once when whenever while after before provided providing assuming except "
    "but only however although though otherwise instead rather first then later soon as than or "
    "because since so lest whether maybe perhaps probably possibly might think thought guess suppose "
    "hope wait hold hang actually sorry mind changed change said say says saying told tell tells "
    "asked ask heard what who whom whose where why how which whatever tomorrow today tonight "
    "yesterday morning afternoon evening noon midnight week weekend month year hour hours minute "
    "minutes second seconds day days monday tuesday wednesday thursday friday saturday sunday next "
    "last now never again twice".split()
)
QUANTITIES = frozenset(
    "all everything everyone everybody anything anyone any some something half both few most more "
    "less other others another else different also too just every each many much rest whole nobody".split()
)
PEOPLE_WORDS = frozenset(
    "i i'm you he she we they me him her us it them his hers their theirs your our its".split()
)
HARD = NEGATIONS | CONDITIONS | STOP_VERBS
RESERVED = (
    HARD
    | QUANTITIES
    | PEOPLE_WORDS
    | DETERMINERS
    | PREPOSITIONS
    | OPENERS
    | {word for phrase in PHRASES for word in phrase if not word.isdigit()}
)

# -- denial

NO = frozenset("no nope nah nay negative".split())
NOT_NO = frozenset(
    "problem problems prob probs worries worry doubt objection objections issue issues question "
    "questions matter sweat stress trouble biggie idea hurry rush kidding big need harm complaints "
    "fear reason 1 wonder concerns bother such other".split()
)
"""Words that make another thing of the "no" before them."""

DENIALS = phrases(
    "no, nope, nah, no way, no thanks, no thank you, hell no, god no, never, never ever, never mind, "
    "nevermind, not now, not yet, not today, not this time, not a chance, no chance, not at all, not "
    "okay, not ok, not that, not this, not this one, not approved, not allowed, don't, do not, dont, "
    "please don't, don't you dare, absolutely not, definitely not, certainly not, of course not, i'd "
    "rather not, rather not, i would rather not, i'd rather you didn't, better not, preferably not, "
    "probably not, i don't think so, i do not think so, stop, stop it, stop that, stop this, stop "
    "there, cancel, cancel it, cancel that, cancel this, abort, abort it, abort that, abort this, "
    "halt, leave, leave it, leave it alone, leave it be, leave it there, leave it as it is, leave "
    "that, leave them, leave that alone, leave them alone, keep, keep it, keep them, keep that, let "
    "it be, drop it, drop that, skip, skip it, skip that, skip this, forget it, forget that, forget "
    "about it, scratch that, i said no, i say no, the answer is no, my answer is no, that's a no, "
    "it's a no, deny, denied, i deny, i deny it, reject, rejected, i reject, decline, declined, i "
    "decline, refuse, refused, i refuse, permission denied, you may not, you can not, you cannot, you "
    "can't, you mustn't, you must not, you shouldn't, i don't approve, i do not approve, i don't "
    "agree, i do not agree, i disagree, i don't allow it, i don't allow that, i do not allow it, i "
    "don't want that, i don't want this, i don't want it, i do not want that, don't do it, don't do "
    "that, don't do this, don't do anything, do not do it, do not do that, don't bother, don't touch "
    "it, do nothing, forbidden, disallow, disallowed, i object, i'd prefer not, i would prefer not, i "
    "would prefer not to, under no circumstances, that's not okay, that's not ok, not a good idea, "
    "let's not, let's not do that, let's not do it, i said don't, i said stop, stop right there, "
    "disapprove, disapproved"
)
LONGEST_DENIAL = max(map(len, DENIALS))
DENIAL_OPENERS = FILLERS | phrases(
    "please, sorry, i'm sorry, i am sorry, actually, wait, hang on, hold on, thanks, thank you, but, "
    "so, and, then, just, now, yet, ever, thanks a lot, thank you very much, for now, sir, right now, "
    "hey, at all, either"
)
DENIAL_THINGS = frozenset("alone there be everything thing whole operation deletion immediately it's".split())
REASONS = frozenset(
    "i i'm i've i'll i'd because cause since as it's it that's that we we're they they're my there's "
    "there this you for until".split()
)
NOT_A_DENIAL = (
    frozenset("worry mind hesitate wait hold forget need care know ask asking".split()) | STOP_VERBS
)
"""After "don't" these say something else."""
DONT_VERBS = frozenset(
    "do run touch proceed continue approve allow execute bother dare start try even".split()
)

ASSENTS = frozenset(
    "yes yeah yep yup ok okay sure fine alright approve approved allow confirm confirmed proceed good "
    "great affirmative accept continue".split()
)
ASSENT_PAIRS = phrases(
    "go ahead, go on, go for, do it, do that, do this, please do, all right, by all, run it, carry on"
)
SELF = frozenset("i i'll i'd i'm me we we'll he she they they'll he'll she'll".split())

# -- other requests

QUESTION_WORDS = frozenset(
    "what what's whats how how's who who's where where's when when's which why is are was were does "
    "did has have".split()
)
REQUEST_VERBS = frozenset(
    "tell set play show remind find search look open give call send write read create add make start "
    "turn switch translate explain summarise summarize calculate convert book order list check count "
    "define compare draft email text message schedule put help spell sing recommend suggest pause "
    "resume increase decrease navigate google delete remove buy wake describe name recite solve plan".split()
)
REQUEST_OPENERS = phrases(
    "can you, could you, would you, will you, can you please, could you please, i want to know, i'd "
    "like to know, do you know, i'd like to hear, let's talk about, let us talk about, please, hey, i "
    "need, i'd like, i want, i would like, can i have, can i get, could i have"
)
LONGEST_OPENER = max(map(len, REQUEST_OPENERS))
ABOUT_THE_ACTION = frozenset(
    "it it's that that's this they they're them those these you your you're again repeat question "
    "happen happens happening undo undone reversible safe risk risks consequences asking meant here "
    "doing affected permission approval".split()
)
"""Words that point at the open question: what holds one asks about it."""
TOPICS = frozenset("weather rain raining sunny snow snowing time date timer alarm news joke".split())
"""Plainly something else, even with an "it" ("what time is it")."""
CONTENTLESS = (
    DETERMINERS
    | PREPOSITIONS
    | PEOPLE_WORDS
    | QUANTITIES
    | QUESTION_WORDS
    | CONDITIONS
    | frozenset(
        "and can could would will should do am been be being had about up out mean means exactly kind "
        "sort thing things details detail reason details option options wrong there please need "
        "needed want know going gonna really anyway name affected ones 1 talk see done".split()
    )
)
