"""Token counts: the estimate against the exact count, and exact counts of long texts."""

import base64
import json
import random
import uuid

import pytest

from mcpp import tokens
from tests.mcpp.prompts.logs import jpeg, webp

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


CHAT = {
    "english": "Hey, can you look at the failing build when you get a chance? I think the cache "
    "step is broken again, it worked fine yesterday.",
    "spanish": "Hola, ¿puedes mirar por qué falla la compilación cuando tengas un momento? Creo "
    "que la caché está rota otra vez, ayer funcionaba bien.",
    "german": "Hallo, kannst du dir den kaputten Build ansehen, wenn du Zeit hast? Ich glaube, der "
    "Cache ist wieder defekt, gestern lief noch alles.",
    "french": "Salut, peux-tu regarder pourquoi la compilation échoue quand tu as un moment ? Je "
    "crois que le cache est encore cassé, hier tout marchait bien.",
    "portuguese": "Oi, você pode ver por que a compilação está falhando quando tiver um tempinho? "
    "Acho que o cache quebrou de novo, ontem funcionava.",
    "italian": "Ciao, puoi guardare perché la build fallisce quando hai un momento? Penso che la "
    "cache sia di nuovo rotta, ieri funzionava tutto.",
    "dutch": "Hoi, kun je naar de kapotte build kijken als je tijd hebt? Ik denk dat de cache weer "
    "stuk is, gisteren werkte alles nog.",
    "finnish": "Hei, voitko katsoa miksi käännös epäonnistuu kun ehdit? Luulen että välimuisti on "
    "taas rikki, eilen kaikki toimi hyvin.",
    "indonesian": "Hai, bisakah kamu melihat mengapa build gagal kalau ada waktu? Sepertinya cache "
    "rusak lagi, kemarin masih berjalan baik.",
    "russian": "Привет, можешь посмотреть, почему падает сборка, когда будет время? Кажется, кэш "
    "опять сломался, вчера всё работало.",
    "hebrew": "היי, אתה יכול לבדוק למה הבנייה נכשלת כשיהיה לך זמן? אני חושב שהמטמון שוב שבור.",
}
DATA = {
    "hex": RANDOM.randbytes(300).hex(),
    "urls": "\n".join(
        f"https://api.example.com/orders/{RANDOM.randrange(10**5)}?page={n}" for n in range(12)
    ),
    "numbers": " ".join(str(RANDOM.randrange(10**6)) for _ in range(60)),
    "log lines": "\n".join(
        f"2026-11-{n:02} 10:{n:02}:07,123 WARNING [billing] request took {n * 37} ms"
        for n in range(10, 20)
    ),
    "names": "maxRetries, parseHeaders, user_id, HttpClient, created_at, MAX_SIZE, toString " * 4,
    "emoji": "Deployed 🚀 all green ✅ thanks 🙏 " * 10,
}
RUNS = {
    "rules": "\n".join(["=" * 80, "SECTION", "=" * 80, "some text about it", "-" * 80] * 10),
    "pytest": f"{'=' * 29} test session starts {'=' * 30}\n"
    f"tests/test_a.py {'.' * 60} [ 50%]\n{'=' * 30} 120 passed in 3.21s {'=' * 29}\n",
    "progress": "\n".join(f"[{'#' * n}{' ' * (50 - n)}] {2 * n}%" for n in range(50)),
    "zeros": base64.b64encode(bytes(3000)).decode(),
    "letters": "a" * 4000,
    "lines": "done" + "\n" * 200 + "next" + "\n" * 200,
    "table": f"┌{'─' * 20}┬{'─' * 30}┐\n│ {'name':<18} │ {'customer':<28} │\n"
    f"├{'─' * 20}┼{'─' * 30}┤\n│ {'Ada':<18} │ {'the first of them':<28} │\n",
    "download": "\n".join(f"Downloading {'━' * 40} {n}.1/9.9 MB eta 0:00:0{n}" for n in range(9)),
    "mixed": f"Ответ сервера:\n{'=' * 80}\nготово\n{'-' * 80}\n",
    "boxes": "┌──────┬──────┐\n│ a    │ b    │\n└──────┴──────┘\n" * 9,
}


@pytest.mark.parametrize("text", [*PROSE.values(), *CHAT.values(), *DATA.values()])
def test_the_estimate_is_within_a_quarter_of_o200k(text: str) -> None:
    assert tokens.estimate(text) == pytest.approx(tokens.exact()(text), rel=0.25)


def test_overall_the_estimate_has_a_third_of_the_error_of_characters_over_four() -> None:
    count = tokens.exact()
    ours, theirs = [], []
    for text in (*SAMPLES.values(), *PROSE.values(), *CHAT.values(), *DATA.values()):
        exact = count(text)
        ours.append(abs(tokens.estimate(text) / exact - 1))
        theirs.append(abs(len(text) / 4 / exact - 1))
    assert sum(ours) < sum(theirs) / 3
    assert sum(ours) / len(ours) < 0.1


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_one_character_costs_few_tokens(name: str) -> None:
    assert tokens.estimate(RUNS[name]) == pytest.approx(tokens.exact()(RUNS[name]), rel=0.3)


@pytest.mark.parametrize("run", ["0", "a", "x", " ", "-", "é", "字", "😀"])
def test_the_estimate_of_a_long_run_is_plausible(run: str) -> None:
    """Such runs are not prose, but must be neither nearly free nor take the whole budget."""
    assert 5 <= tokens.estimate(run * 500) <= 1500


@pytest.mark.parametrize("name", SAMPLES)
def test_the_estimate_is_within_a_fifth_of_o200k_on_typical_log_contents(name: str) -> None:
    text = SAMPLES[name]
    count = tokens.exact()(text)
    assert tokens.estimate(text) == pytest.approx(count, rel=0.2)


@pytest.mark.parametrize("name", ["uuids", "chinese", "japanese", "json"])
def test_the_estimate_beats_characters_over_four_where_that_fails(name: str) -> None:
    text = SAMPLES[name]
    count = tokens.exact()(text)
    assert abs(tokens.estimate(text) - count) < abs(len(text) / 4 - count) / 3


@pytest.mark.parametrize("text", ["", "x", " ", "\n" * 500, "." * 500, " " * 500, "0" * 500, "😀"])
def test_the_estimate_is_zero_only_for_an_empty_text(text: str) -> None:
    assert (tokens.estimate(text) > 0) == bool(text)


@pytest.mark.parametrize("unit", ["the quick brown fox ", "x", "😀", "鬱", "<|endoftext|>"])
def test_the_exact_counter_accepts_texts_of_any_length(unit: str) -> None:
    text = unit * (1_200_000 // len(unit))
    count = tokens.exact()
    assert count(text) == pytest.approx(count(unit * 1000) * len(text) / len(unit) / 1000, rel=0.02)


def test_chunks_are_complete_and_split_before_spaces() -> None:
    text = "word " * 1000
    pieces = tokens.chunks(text, 99)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 99
    assert all(piece.startswith(" ") for piece in pieces[1:])
    assert "".join(tokens.chunks("x" * 1000, 99)) == "x" * 1000


def test_the_cost_of_an_image_depends_on_its_area() -> None:
    def png(width: int, height: int) -> str:
        head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
        size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
        return base64.b64encode(head + size + b"x" * 100_000).decode()

    assert tokens.image_tokens(png(750, 100)) == 100
    assert tokens.image_tokens(png(9000, 9000)) == tokens.DEFAULT_IMAGE_TOKENS
    assert tokens.image_tokens("not base64!") == tokens.DEFAULT_IMAGE_TOKENS


@pytest.mark.parametrize("before", [0, 1, 2, 60_000])
def test_the_size_of_a_jpeg_is_found_after_its_profile(before: int) -> None:
    assert tokens.image_size(jpeg(1280, 720, before)) == (1280, 720)


@pytest.mark.parametrize("form", ["VP8 ", "VP8L", "VP8X"])
def test_the_size_of_a_webp_is_found_in_each_of_its_formats(form: str) -> None:
    assert tokens.image_size(webp(form, 1280, 720)) == (1280, 720)
