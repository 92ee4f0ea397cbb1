"""One list of scripts without spaces, for the gateway's search and for memory's."""

import json

import pytest

from mcpp_agents.memory.search import terms
from mcpp_gateway.core.history.words import Words

# A sentence, and a word inside it.
SENTENCES = {
    "Chinese": ("我要退款了", "退款"),
    "rarer Han": ("吃𠮷野家飯", "𠮷野"),
    "Japanese": ("お客様に返金しました", "返金"),
    "Katakana": ("新しいプロジェクト管理", "プロジェクト"),
    "Korean": ("고객에게환불했습니다", "환불"),
    "Thai": ("ลูกค้าขอเงินคืนวันนี้", "เงินคืน"),
    "Lao": ("ລູກຄ້າຂໍເງິນຄືນ", "ເງິນ"),
    "Burmese": ("ငွေပြန်အမ်းပါ", "ပြန်"),
    "Khmer": ("អតិថិជនសុំប្រាក់វិញ", "ប្រាក់"),
}


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("language", SENTENCES)
def test_a_word_inside_a_sentence_is_found_in_history_and_in_memory(language: str) -> None:
    sentence, word = SENTENCES[language]
    envelope = json.dumps({"payload": {"text": sentence}}, ensure_ascii=False)
    assert Words.parse(word).match(envelope.encode())
    wanted = set(terms.parse(word).terms)
    assert wanted
    assert wanted <= set(terms.grams(sentence).split())
