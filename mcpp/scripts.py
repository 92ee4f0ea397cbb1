"""Scripts that put no spaces between words: their text is searched by characters, not by words."""

from typing import Final

__all__ = ["UNSPACED"]

UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\uac00-\ud7af\u1100-\u11ff"  # Hangul
    "\U00020000-\U0003ffff"  # rarer Han
)
"""Their characters, as the inside of a character class of a regular expression."""
