"""Counting tokens: the estimate against the exact vocabulary, and the exact one on long texts."""

import base64
import json
import random
import uuid

import pytest

from mcpp import tokens

RANDOM = random.Random(5)
SAMPLES = {
    "english": "The committee met on Tuesday to talk about the new bridge. Nobody was sure how "
    "long the work would take, but everyone agreed that the old one could not stay open through "
    "another winter. A decision was put off until the engineers had finished their report.",
    "code": "def merge(left: list[int], right: list[int]) -> list[int]:\n"
    "    result = []\n    while left and right:\n"
    "        source = left if left[0] <= right[0] else right\n"
    "        result.append(source.pop(0))\n    return result + left + right\n",
    "json": json.dumps(
        [{"id": n, "name": f"item {n}", "price": n * 1.5, "tags": ["new"]} for n in range(20)]
    ),
    "uuids": "\n".join(str(uuid.UUID(int=RANDOM.getrandbits(128))) for _ in range(20)),
    "chinese": "昨天的会议上，大家讨论了新桥的建设计划。工程师认为还需要两个月才能完成设计。",
    "japanese": "昨日の会議では、新しい橋の建設について話し合いました。設計にはあと二か月かかる。",
    "korean": "어제 회의에서는 새로운 다리의 건설 계획에 대해 이야기했습니다.",
    "base64": base64.b64encode(RANDOM.randbytes(600)).decode(),
}

PROSE = {
    "hindi": "समिति ने मंगलवार को नए पुल के बारे में बात की। किसी को पता नहीं था कि काम में कितना समय लगेगा।",
    "thai": "คณะกรรมการประชุมกันเมื่อวันอังคารเพื่อพูดคุยเรื่องสะพานใหม่ ไม่มีใครรู้ว่างานจะใช้เวลานานเท่าใด",
    "bengali": "কমিটি মঙ্গলবার নতুন সেতু নিয়ে আলোচনা করেছে। কাজ কতদিন চলবে তা কেউ জানত না।",
    "vietnamese": "Ủy ban họp vào thứ Ba để bàn về cây cầu mới. Không ai biết chắc công việc sẽ "
    "kéo dài bao lâu, nhưng mọi người đều đồng ý rằng cây cầu cũ không thể mở thêm mùa đông nữa.",
    "polish": "Komisja zebrała się we wtorek, żeby porozmawiać o nowym moście. Nikt nie wiedział, "
    "jak długo potrwają prace, ale wszyscy zgodzili się, że stary nie przetrwa kolejnej zimy.",
    "turkish": "Kurul salı günü yeni köprüyü konuşmak için toplandı. İşin ne kadar süreceğini "
    "kimse bilmiyordu, ama eskisinin bir kış daha açık kalamayacağında herkes hemfikirdi.",
    "greek": "Η επιτροπή συνεδρίασε την Τρίτη για τη νέα γέφυρα. Κανείς δεν ήξερε πόσο θα "
    "διαρκέσουν τα έργα.",
    "arabic": "اجتمعت اللجنة يوم الثلاثاء للحديث عن الجسر الجديد. لم يعرف أحد كم ستستغرق الأعمال.",
    "russian": "Комиссия собралась во вторник, чтобы обсудить новый мост. Никто не знал, сколько "
    "времени займут работы, но все согласились, что старый не выдержит ещё одной зимы.",
    "german": "Der Ausschuss traf sich am Dienstag, um über die neue Brücke zu sprechen. Niemand "
    "wusste, wie lange die Arbeiten dauern würden, aber die alte konnte nicht geöffnet bleiben.",
    "capitals": "THE COMMITTEE MET ON TUESDAY TO TALK ABOUT THE NEW BRIDGE. NOBODY WAS SURE HOW "
    "LONG THE WORK WOULD TAKE.",
}


@pytest.mark.parametrize("name", PROSE)
def test_the_estimate_is_within_a_quarter_of_o200k_on_prose(name: str) -> None:
    count = tokens.exact()(PROSE[name])
    assert tokens.estimate(PROSE[name]) == pytest.approx(count, rel=0.25)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_estimate_is_within_a_fifth_of_o200k(name: str) -> None:
    text = SAMPLES[name]
    count = tokens.exact()(text)
    assert tokens.estimate(text) == pytest.approx(count, rel=0.2)


@pytest.mark.parametrize("name", ["uuids", "chinese", "japanese", "json"])
def test_the_estimate_beats_characters_over_four_where_that_fails(name: str) -> None:
    text = SAMPLES[name]
    count = tokens.exact()(text)
    assert abs(tokens.estimate(text) - count) < abs(len(text) / 4 - count) / 3


@pytest.mark.parametrize("text", ["", "x", " ", "\n" * 500, "." * 500, " " * 500, "0" * 500, "😀"])
def test_the_estimate_is_nothing_only_for_nothing(text: str) -> None:
    assert (tokens.estimate(text) > 0) == bool(text)


@pytest.mark.parametrize("unit", ["the quick brown fox ", "x", "😀", "鬱", "<|endoftext|>"])
def test_the_exact_counter_takes_texts_of_any_length(unit: str) -> None:
    text = unit * (1_200_000 // len(unit))
    count = tokens.exact()
    assert count(text) == pytest.approx(count(unit * 1000) * len(text) / len(unit) / 1000, rel=0.02)


def test_chunks_lose_nothing_and_cut_before_spaces() -> None:
    text = "word " * 1000
    pieces = tokens.chunks(text, 99)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 99
    assert all(piece.startswith(" ") for piece in pieces[1:])
    assert "".join(tokens.chunks("x" * 1000, 99)) == "x" * 1000


def test_an_image_is_priced_by_its_area() -> None:
    def png(width: int, height: int) -> str:
        head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
        size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
        return base64.b64encode(head + size + b"x" * 100_000).decode()

    assert tokens.image_tokens(png(750, 100)) == 100
    assert tokens.image_tokens(png(9000, 9000)) == tokens.DEFAULT_IMAGE_TOKENS
    assert tokens.image_tokens("not base64!") == tokens.DEFAULT_IMAGE_TOKENS
