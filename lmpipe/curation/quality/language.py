"""Which language a document is in, and what languages are called.

fastText's lid.176 reads a line; a page's first lines are menus and API names, which it takes for
Turkish or Russian. So documents are judged by three slices of their body, without what
looks like code; where that leaves doubt, by a longer sample. Labels and the
codes in configs are brought to ISO 639-1 wherever a two-letter code exists: `eng`, `en-US` and
`eng_Latn` are all `en`. Any other label of a model is read as ISO 639-3 with a script: `ace_Latn`
is `ace`. A text without letters is `und`, undetermined, as is one whose label is no language's.
"""

import re
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

from lmpipe.errors import ConfigError

# ISO 639-1 with its ISO 639-3 code(s)
_CODE_TABLE = """
aa aar ab abk ae ave af afr ak aka am amh an arg ar ara,arb as asm av ava ay aym,ayr az aze,azj
ba bak be bel bg bul bh bih bi bis bm bam bn ben bo bod br bre bs bos ca cat ce che ch cha
co cos cr cre cs ces,cze cu chu cv chv cy cym,wel da dan de deu,ger dv div dz dzo ee ewe
el ell,gre en eng eo epo es spa et est,ekk eu eus,baq fa fas,per,pes ff ful fi fin fj fij
fo fao fr fra,fre fy fry ga gle gd gla gl glg gn grn gu guj gv glv ha hau he heb,iw hi hin
ho hmo hr hrv ht hat hu hun hy hye,arm hz her ia ina id ind,in ie ile ig ibo ii iii ik ipk
io ido is isl,ice it ita iu iku ja jpn jv jav ka kat,geo kg kon ki kik kj kua kk kaz kl kal
km khm kn kan ko kor kr kau ks kas ku kur,kmr kv kom kw cor ky kir la lat lb ltz lg lug
li lim ln lin lo lao lt lit lu lub lv lav,lvs mg mlg,plt mh mah mi mri,mao mk mkd,mac ml mal
mn mon,khk mr mar ms msa,may,zsm mt mlt my mya,bur na nau nb nob nd nde ne nep,npi ng ndo
nl nld,dut nn nno no nor nr nbl nv nav ny nya oc oci oj oji om orm,gaz or ori,ory os oss pa pan
pi pli pl pol ps pus,pbt pt por qu que rm roh rn run ro ron,rum ru rus rw kin sa san sc srd
sd snd se sme sg sag sh hbs si sin sk slk,slo sl slv sm smo sn sna so som sq sqi,alb sr srp ss ssw
st sot su sun sv swe sw swa,swh ta tam te tel tg tgk th tha ti tir tk tuk tl tgl,fil tn tsn
to ton tr tur ts tso tt tat tw twi ty tah ug uig uk ukr ur urd uz uzb,uzn ve ven vi vie
vo vol wa wln wo wol xh xho yi yid,ydd,ji yo yor za zha zh zho,chi,cmn zu zul
"""
# labels of lid.176 that have three letters because ISO 639-1 has no code for them
_THREE_LETTER_TABLE = """
als arz ast azb bar bcl bpy bxr cbk ceb ckb diq dsb dty eml frr gom hif hsb ilo jbo kab krc
lez lmo lrc mai mhr min mrj mwl myv mzn nah nap nds new pam pfl pms pnb rue sah scn sco
tyv vec vep vls war wuu xal xmf yue
"""
_PAIRS = _CODE_TABLE.split()
_TWO_LETTER = {two: two for two in _PAIRS[::2]} | {
    three: two
    for two, threes in zip(_PAIRS[::2], _PAIRS[1::2], strict=True)
    for three in threes.split(",")
}
_THREE_LETTER = frozenset(_THREE_LETTER_TABLE.split())
_WITH_SCRIPT = {"als": "sq"}  # bare, it is lid.176's Alemannic
_SEPARATOR = re.compile(r"[-_]")
# words of programs hold brackets, operators or underscores; digits, dots and slashes prove nothing
_CODE = re.compile(r"[{}\[\]<>=|\\#$^&*~`+@_]")
MIN_PROSE_WORDS = 10
UNKNOWN = "und"
_NO_LETTER = "\u2139"  # an emoji that Unicode calls a letter


@lru_cache(1024)
def normalise_language(code: str) -> str:
    """Return the ISO 639-1 code (or lid.176's own, where none exists) of any common notation.

    Raises:
        ConfigError: nobody knows the code.
    """
    primary = _SEPARATOR.split(code.removeprefix("__label__").strip())[0].lower()
    if primary in _TWO_LETTER:
        return _TWO_LETTER[primary]
    if primary in _THREE_LETTER:
        return primary
    raise ConfigError(
        f"language {code!r} is unknown; use ISO 639-1 (en), 639-3 (eng) or BCP 47 (en-US)"
    )


def policy_language(code: str) -> str:
    """Return the code of a language in a config, where any three letters may be ISO 639-3.

    Raises:
        ConfigError: it is no notation of a language.
    """
    return _three_letters(code) or normalise_language(code)


def label_language(label: str) -> str:
    """Return the code of a model's label; UNKNOWN: it names no language."""
    try:
        return _three_letters(label) or normalise_language(label)
    except ConfigError:
        return UNKNOWN


def _three_letters(label: str) -> str | None:
    """Return ISO 639-3 as it is where no table here has it; None: it is something else."""
    primary, *rest = _SEPARATOR.split(label.removeprefix("__label__").strip())
    code = primary.lower()
    if rest and code in _WITH_SCRIPT:
        return _WITH_SCRIPT[code]
    is_plain = len(code) == 3 and code.isascii() and code.isalpha()
    return code if is_plain and code not in _TWO_LETTER else None


def known_languages(model: Path) -> list[str]:
    """Return the codes that a model can say, in order."""
    labels = load_fasttext(str(model)).get_labels()
    return sorted({UNKNOWN, *map(label_language, labels)})


def has_letters(text: str) -> bool:
    """Say whether a text holds a letter, without which it is in no language."""
    return any(character.isalpha() and character != _NO_LETTER for character in text)


def sample(text: str, characters: int) -> str:
    """Return about so many characters of a text's body on one line, in NFC.

    Three slices, from a sixth, the middle and five sixths of the text, cut at spaces.
    """
    if len(text) > characters:
        size = characters // 3
        slices = []
        for sixth in (1, 3, 5):
            start = max(0, min(len(text) - size, len(text) * sixth // 6 - size // 2))
            piece = text[start : start + size]
            slices.append(piece.split(" ", 1)[-1] if start else piece)
        text = " ".join(slices)
    words = text.split()
    return unicodedata.normalize("NFC", " ".join(_prose(words) or words))


def _prose(words: list[str]) -> list[str]:
    """Leave out what programs are made of; nothing is left out of texts that hold none of it.

    Only ASCII words can be code, so scripts without spaces lose nothing. Fewer than ten words of
    prose say less than the code around them does.
    """
    if not _CODE.search(" ".join(words)):
        return words
    prose = [word for word in words if not _CODE.search(word) or not word.isascii()]
    return prose if len(prose) >= MIN_PROSE_WORDS else words


class LanguageIdentifier:
    """Name the language of texts with a fastText model.

    A first look at a short sample settles most documents. Where its probability is below
    `certain`, a sample three times as long is asked; where that one disagrees and is in doubt
    itself, a long one decides, which is the whole text of all but long documents.
    """

    def __init__(
        self, model: Path, sample_characters: int, more_characters: int, certain: float
    ) -> None:
        self._model = load_fasttext(str(model))
        second = 3 * sample_characters
        self._looks = (sample_characters, second, max(more_characters, second))
        self._certain = certain

    def __call__(self, text: str) -> tuple[str, float]:
        """Return the code and its probability: UNKNOWN and 0 of a text without letters."""
        code, score = UNKNOWN, 0.0
        for characters in self._looks:
            before = code
            code, score = self._look(sample(text, characters))
            is_settled = score >= self._certain or (code == before and code != UNKNOWN)
            if is_settled or len(text) <= characters:
                break
        return code, score

    def _look(self, line: str) -> tuple[str, float]:
        if not has_letters(line):
            return UNKNOWN, 0.0
        labels, scores = self._model.predict(line)
        code = label_language(labels[0]) if labels else UNKNOWN
        return code, 0.0 if code == UNKNOWN else min(1.0, float(scores[0]))


@lru_cache(4)
def load_fasttext(path: str) -> Any:
    """Load a fastText model once per process."""
    import fasttext

    return fasttext.load_model(path)
