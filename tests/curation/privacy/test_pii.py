"""What is masked, what is left alone, and the stage that does it."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from lmpipe.bench.pii import generated_cases, plant_harmless
from lmpipe.curation.privacy.config import MaskConfig
from lmpipe.curation.privacy.mask import mask
from lmpipe.curation.privacy.pii import TYPES, find, iban_end, luhn
from lmpipe.curation.privacy.pii import mask as mask_text
from tests.curation.conftest import Workbench
from tests.curation.given import given, id_of, kept, removed, shards

EXAMPLES = Path(__file__).parents[3] / "flows/recipes/demo_data/quality/examples.jsonl"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [json.loads(line)["text"] for line in EXAMPLES.read_text().splitlines()]


def found(text: str) -> list[tuple[str, str]]:
    return [(span.type, text[span.start : span.end]) for span in find(text)]


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("write to a.b+c@mail.example.org.", "email", "a.b+c@mail.example.org"),
        ("IBAN DE89 3704 0044 0532 0130 00 OK", "iban", "DE89 3704 0044 0532 0130 00"),
        ("pay with 4111 1111 1111 1111 now", "card", "4111 1111 1111 1111"),
        ("his SSN is 078-05-1120", "ssn", "078-05-1120"),
        ("from 8.8.8.8:53 it came", "ip", "8.8.8.8"),
        ("peer 2001:4860:4860::8888 answers", "ip", "2001:4860:4860::8888"),
        ("ring +49 (0)30 901820 today", "phone", "+49 (0)30 901820"),
        ("Fax: 345-899-3560x4587", "phone", "345-899-3560x4587"),
    ],
)
def test_each_type_is_found_whole(text: str, type_: str, value: str) -> None:
    assert found(text) == [(type_, value)]


@pytest.mark.parametrize(
    "text",
    [
        "localhost is 127.0.0.1, the router 192.168.0.1, an example 192.0.2.7 and 2001:db8::1",
        "upgrade to version 62.0.3202.94 of Chrome/62.0.3202.94",
        "49.6.4.13. Stream Stop Callback",
        "see Section 24.2.2.4 and 9.17.3.1 for more",
        "released 2024-01-15, 15.01.2024 and 01/15/2024",
        "md5 d41d8cd98f00b204e9800998ecf8427e, call 9780131103627 at most once",
        "ISBN 978-0-13-110362-7, phone book",
        "DE89 3704 0044 0532 0130 01 has a wrong checksum, so has 4111 1111 1111 1112",
        "icon@2x.png and std::vector and 12:34:56:78:90:ab:cd:ef",
        "from -2147483648 to +2147483647",
        "numbers 000-12-3456, 666-12-3456 and 912-12-3456 are never issued",
    ],
)
def test_versions_dates_hashes_and_numbers_are_left_alone(text: str) -> None:
    assert found(text) == []


def test_generated_cases_in_real_sentences_are_found_by_type(texts: list[str]) -> None:
    missed: Counter[str] = Counter()
    for text, spans in generated_cases(texts, 100, seed=7):
        ((start, end, type_),) = spans
        missed[type_] += not any(
            s.type == type_ and s.start <= start and s.end >= end for s in find(text)
        )
    assert set(missed) == set(TYPES)
    assert sum(missed.values()) <= 2, missed  # an address after the word "version"


def test_generated_versions_dates_hashes_and_isbns_are_left_alone(texts: list[str]) -> None:
    for kind, cases in plant_harmless(texts, 100, seed=7).items():
        hits = [t for t, a, b in cases if any(s.start < b and s.end > a for s in find(t))]
        assert hits == [], kind


@each(st.text(alphabet="0123456789", min_size=11, max_size=15))
def test_any_single_wrong_digit_breaks_a_card_number(body: str) -> None:
    number = next(body + str(check) for check in range(10) if luhn(body + str(check)))
    for at in range(len(number)):
        wrong = number[:at] + str((int(number[at]) + 1) % 10) + number[at + 1 :]
        assert not luhn(wrong)


def test_an_ibans_end_is_where_its_country_says() -> None:
    text = "NO93 8601 1117 947 AND MORE"
    assert iban_end(text, 0) == len("NO93 8601 1117 947")
    assert iban_end("XX93 8601 1117 947", 0) is None


@each(st.text(alphabet="ab@.:+-(1 9)0x/", max_size=60))
def test_spans_are_ordered_apart_and_masking_keeps_the_rest(text: str) -> None:
    spans = find(text)
    assert all(a.end <= b.start for a, b in pairwise(spans))
    rest = mask_text(text, spans)
    for span in reversed(spans):
        rest = rest.replace(f"[{span.type.upper()}]", "", 1)
    assert len(rest) == len(text) - sum(span.end - span.start for span in spans)


def test_the_stage_masks_the_chosen_types_and_removes_nothing(bench: Workbench) -> None:
    texts = {"a": "mail a@b.example, phone 555-867-5309", "b": "nothing here"}
    documents = bench.run(given, shards(texts))
    masked = bench.run(mask, MaskConfig(), documents)
    assert kept(masked) == {id_of("a"): "mail [EMAIL], phone [PHONE]", id_of("b"): "nothing here"}
    assert removed(masked) == {}
    assert masked.metrics["masked"] == {"email": 1, "phone": 1}
    assert masked.metrics["documents_masked"] == 1
    some = bench.run(mask, MaskConfig(types=("phone",)), documents)
    assert kept(some)[id_of("a")] == "mail a@b.example, phone [PHONE]"
    two = bench.run(mask, MaskConfig(), documents, workers=2)
    assert two.digest == masked.digest


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("문의는 lee.minho@example.kr로 보내 주세요.", "문의는 [EMAIL]로 보내 주세요."),
        (
            "联系邮箱：zhang.wei@example.cn电话010-6552-0100，周一至周五。",
            "联系邮箱：[EMAIL]电话[PHONE]，周一至周五。",
        ),
        ("请写信到我的邮箱wang.fang@example.cn谢谢大家", "请写信到我的邮箱[EMAIL]谢谢大家"),
        (
            "来信请寄liu.yang@example.cn我们会在三个工作日之内给您回复并且寄送样品以及全部的产品目录",
            "来信请寄[EMAIL]我们会在三个工作日之内给您回复并且寄送样品以及全部的产品目录",
        ),
        (
            "お問い合わせはtanaka.yui@example.jpまでお願いします。担当は2課です。",
            "お問い合わせは[EMAIL]までお願いします。担当は2課です。",
        ),
        ("連絡先sato.ken@example.jp宛2024年までに送付", "連絡先[EMAIL]宛2024年までに送付"),
        ("ติดต่อsomchai@example.co.thได้ทุกวัน", "ติดต่อ[EMAIL]ได้ทุกวัน"),
        (
            "宛先 info@例え.jp まで、代表者info@企業.中国です",
            "宛先 [EMAIL] まで、代表者[EMAIL]です",
        ),
        ("邮箱zhang＠example.cn，谢谢", "邮箱[EMAIL]，谢谢"),
        ("服务器地址是8.8.4.4端口开放", "服务器地址是[IP]端口开放"),
        ("路由2001:4860:4860::8888可达", "路由[IP]可达"),
        ("信用卡号4111111111111111已经过期", "信用卡号[CARD]已经过期"),
        ("账户DE89370400440532013000开户行", "账户[IBAN]开户行"),
        ("口座はGB29 NWBK 6016 1331 9268 19です", "口座は[IBAN]です"),
        ("社会保障号078-05-1120属于他", "社会保障号[SSN]属于他"),
        ("手机13812345678随时可打", "手机[PHONE]随时可打"),
        ("電話番号は03-1234-5678です", "電話番号は[PHONE]です"),
        ("電話０３－１２３４－５６７８まで", "電話[PHONE]まで"),
        ("전화 02-312-3456번으로", "전화 [PHONE]번으로"),
        ("请打+86 138 1234 5678找我", "请打[PHONE]找我"),
    ],
)
def test_beside_scripts_without_spaces_the_value_goes_and_the_words_stay(
    text: str, masked: str
) -> None:
    assert mask_text(text, find(text)) == masked


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Tél. 01.84.17.61.18 ou par courrier", "01.84.17.61.18"),
        ("Telefon 089/1234567, Zimmer 4", "089/1234567"),
        ("Tel.: 0171 / 123 45 67 abends", "0171 / 123 45 67"),
        ("Fax 044.123.45.67", "044.123.45.67"),
        ("tel. 06.12345678 a Roma", "06.12345678"),
        ("телефон 8 (495) 123-45-67, спросить Анну", "8 (495) 123-45-67"),
        ("Тел.: 067 123 45 67", "067 123 45 67"),
        ("факс 495 123-45-67", "495 123-45-67"),
        ("дзвоніть 044 123 45 67 вранці", "044 123 45 67"),
    ],
)
def test_phone_numbers_of_other_shapes_and_languages_are_found_after_a_cue(
    text: str, value: str
) -> None:
    assert found(text) == [("phone", value)]


@pytest.mark.parametrize(
    "text",
    [
        "call 12.345.678.901 a large number, or 3.14159265 pi",
        "Telefon am 01/15/2024 oder 15.01.2024, Seite 12/3456789",
        "тел. выпущен 15.01.2024, версия 62.0.3202.94",
        "电话会议在2024-01-15举行，订单号 20240115-000123 已发",
        "联系人 2024年12月31日，人口12345678",
        "关注@张三。谢谢@李四",
        "路由器是192.168.0.1，版本号1.2.3.4",
        "账户DE89370400440532013001开户行，卡号4111111111111112",
    ],
)
def test_numbers_beside_cues_of_any_script_that_are_no_phones_are_left_alone(text: str) -> None:
    assert found(text) == []
